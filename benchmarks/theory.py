"""The theory of the ZEUS paper beside what trained models do: numbers and figures from recorded trajectories.

    python benchmarks/theory.py --figures docs/figures

Every model runs in full, once, as one batch; its outputs psi_i, after guidance, are kept. A run at r = 2 from the same
noise follows. Draws the four figures of docs/theory.md. The last line is one JSON object.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from theory_figures import draw_all

from zeus_trt.comparing import open_compared
from zeus_trt.evaluation.workload import Workload
from zeus_trt.machine import describe_machine
from zeus_trt.zeus_graph import Plan, Predictor

ROOT = Path(__file__).parents[1]
RATIO = 2
SCHEMES = {"reuse": "reuse", "extrapolate": "extrapolate", "interleaved": "zeus"}
ORDERS = (1, 2, 3, 4)
NOISES = np.geomspace(1e-3, 1.0, 13)
STRIDES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Recording:
    """Trajectories of one model from the same noise, in units of the RMS of its outputs.

    Args:
        real: (N, S, elements) float64, the outputs of full runs.
        used: The outputs used, full or predicted, of runs by ``plan``.
        plan: r = 2 inside the default window.
        mean: (N, S) mean over the elements of the real outputs, in the model's units.
    """

    real: np.ndarray
    used: np.ndarray
    plan: Plan
    mean: np.ndarray

    @property
    def window(self) -> range:
        """Steps from the first skipped one to the last: those that a plan may skip."""
        skipped = [step for step in range(len(self.plan)) if not self.plan.is_full(step)]
        return range(skipped[0], skipped[-1] + 1)


def record(workload: Workload, num_steps: int, num_samples: int) -> Recording:
    """Runs samples 0 .. num_samples - 1 in full and at r = 2."""

    def run(plan: Plan) -> np.ndarray:
        outputs: list[np.ndarray] = []
        workload.sample(
            plan, range(num_samples), num_steps=num_steps,
            on_step=lambda step: outputs.append(step.output.double().flatten(1).cpu().numpy().copy()),
        )  # fmt: skip
        return np.stack(outputs)

    count = workload.count_evaluations(num_steps)
    real, plan = run(Plan("F" * count)), Plan.uniform(count, RATIO)
    scale = np.sqrt(np.mean(real**2))
    return Recording(real / scale, run(plan) / scale, plan, real.mean(axis=2))


def predict(plan: Plan, predictor: str, real: np.ndarray) -> np.ndarray:
    """The outputs used where the full steps have the recorded outputs."""
    used: list[np.ndarray] = []
    for step, row in enumerate(Predictor.parse(predictor).rows(plan)):
        used.append(real[step] if row is None else sum(used[source] * weight for source, weight in row.items()))
    return np.stack(used)


def measure_schemes(recording: Recording) -> dict[str, Any]:
    """Bias (norm of the mean error) and variance (mean squared deviation from it) of block means, by full step.

    Both are means over the elements: RMS and mean square. In theory the bias of reuse is 3/2 psi' and that of
    interleaved 7/2 psi'', from differences of the mean output over a block on either side of the full step; white
    noise of variance n gives them variances of 3/2 n and 3 n (the weights squared, and n / 2 of the two real outputs).
    """
    plan, real = recording.plan, recording.real
    width = RATIO + 1
    starts = [t for t in plan.full_steps if t >= width and plan.steps[t : t + width + 1] == "FXRF"]
    found: dict[str, Any] = {"steps": starts}
    for name, predictor in SCHEMES.items():
        error = predict(plan, predictor, real) - real
        blocks = np.stack([error[t + 1 : t + 1 + RATIO].mean(axis=0) for t in starts])
        mean = blocks.mean(axis=1, keepdims=True)
        found[name] = {
            "bias": _rms(mean[:, 0], 1).tolist(),
            "variance": np.mean((blocks - mean) ** 2, axis=(1, 2)).tolist(),
        }
    mean, at = real.mean(axis=1), np.array(starts)
    slope = (mean[at + width] - mean[at - width]) / (2 * width)
    curvature = (mean[at + width] - 2 * mean[at] + mean[at - width]) / width**2
    noise, *_ = fit_noise(recording)
    found["reuse"] |= {"bias_in_theory": (1.5 * _rms(slope, 1)).tolist(), "noise_in_theory": 1.5 * noise}
    found["interleaved"] |= {"bias_in_theory": (3.5 * _rms(curvature, 1)).tolist(), "noise_in_theory": 3 * noise}
    return found


def fit_noise(recording: Recording) -> tuple[float, float, float]:
    """Variance n of what is white from step to step, square slope s^2 and square curvature c^2 per step.

    From the mean square errors of reuse, 2 n + h^2 s^2, and of a line, 6 n + h^4 c^2, at strides h = 1 and 2.
    """
    reuse, line = ([_mean_square(extrapolate(order), recording, stride) for stride in (1, 2)] for order in (1, 2))
    return max(4 * reuse[0] - reuse[1], 0.0) / 6, (reuse[1] - reuse[0]) / 3, max(line[1] - line[0], 0.0) / 15


def measure_means(recording: Recording) -> dict[str, Any]:
    """Mean output by step, its deviation over trajectories, and by step the second difference over the first."""
    first, second = np.diff(recording.real, axis=0), np.diff(recording.real, n=2, axis=0)
    bend = _rms(second, (1, 2)) / _rms(first[1:], (1, 2))
    return {
        "mean": recording.mean.mean(axis=1).tolist(),
        "deviation": recording.mean.std(axis=1).tolist(),
        "steps": list(range(1, len(second) + 1)),
        "bend": bend.tolist(),
    }


def extrapolate(order: int) -> np.ndarray:
    """Weights on the last ``order`` outputs, newest first, of the polynomial through them one step on."""
    plan = Plan("F" * max(order, 2) + "XF")
    step = plan.steps.index("X")
    row = Predictor.parse("reuse" if order == 1 else f"lagrange-{order}").rows(plan)[step]
    assert row is not None
    return np.array([row[step - 1 - back] for back in range(order)])


def measure_orders(recording: Recording) -> dict[str, Any]:
    """By order: the Lebesgue constant, how errors of the outputs used grow, and the error of one prediction.

    ``growth`` is |sum w_m e_m| / max |e_m| of every trajectory and step of the window; e_m is the outputs used at
    r = 2 minus the real ones. ``clean`` and ``used`` are the RMS error of a prediction of the next real output from
    real outputs, and from those used.
    """
    found = []
    error = recording.used - recording.real
    steps = [step for step in recording.window if step >= max(ORDERS)]
    for order in ORDERS:
        weights = extrapolate(order)
        carried = {name: _apply(weights, outputs, steps) for name, outputs in
                   (("clean", recording.real), ("used", recording.used), ("error", error))}  # fmt: skip
        largest = np.max([_rms(error[np.array(steps) - 1 - back], 2) for back in range(order)], axis=0)
        moved = largest > 0
        growth = _rms(carried["error"], 2)[moved] / largest[moved]
        found.append({
            "order": order,
            "lebesgue": float(np.abs(weights).sum()),
            "white_noise": float(np.linalg.norm(weights)),
            "growth": [float(np.quantile(growth, share)) for share in (0.0, 0.5, 1.0)],
            **{name: float(_rms(carried[name] - recording.real[steps], None)) for name in ("clean", "used")},
        })  # fmt: skip
    return {"orders": found}


def measure_crossover(recording: Recording, seed: int = 0) -> dict[str, Any]:
    """Where reuse beats a line, with white noise in the outputs: sigma in units of their RMS.

    ``predicted`` takes n, s and c of ``fit_noise``, hence strides 1 and 2 alone: sigma^2 = ((h s)^2 - (h^2 c)^2) / 4
    - n at stride h. ``measured`` is where the two errors cross as sigma grows; None where the line loses without it.
    """
    noise = np.random.default_rng(seed).standard_normal(recording.real.shape)
    white, slope, curvature = fit_noise(recording)
    found: dict[str, Any] = {"noises": NOISES.tolist(), "strides": list(STRIDES), "predicted": [], "measured": []}
    found["own_noise"] = float(np.sqrt(white))
    for stride in STRIDES:
        room = (stride**2 * slope - stride**4 * curvature) / 4 - white
        found["predicted"].append(float(np.sqrt(room)) if room > 0 else None)
        errors = [
            [_mean_square(extrapolate(order), recording, stride, sigma * noise) for sigma in NOISES] for order in (1, 2)
        ]
        ratio = np.array(errors[1]) / np.array(errors[0])
        found["measured"].append(_cross(NOISES, ratio))
        if stride == 1:
            found["ratio"] = ratio.tolist()
            line, reuse = 6 * white + curvature, 2 * white + slope
            found["expected"] = ((line + 5 * NOISES**2) / (reuse + NOISES**2)).tolist()
    return found


def _mean_square(weights: np.ndarray, recording: Recording, stride: int, noise: np.ndarray | float = 0.0) -> float:
    noisy = recording.real + noise
    steps = [step for step in recording.window if step >= len(weights) * stride]
    return float(np.mean((_apply(weights, noisy, steps, stride) - recording.real[steps]) ** 2))


def _apply(weights: np.ndarray, outputs: np.ndarray, steps: Sequence[int], stride: int = 1) -> np.ndarray:
    """Predictions of ``steps`` from the outputs 1, 2, ... strides before."""
    at = np.array(steps)
    return sum(weight * outputs[at - (back + 1) * stride] for back, weight in enumerate(weights))


def _cross(noises: np.ndarray, ratio: np.ndarray) -> float | None:
    """Where the ratio of the errors becomes 1, on a line between logarithms; None where it begins above."""
    above = np.flatnonzero(ratio >= 1)
    if not above.size or above[0] == 0:
        return None
    pair = slice(above[0] - 1, above[0] + 1)
    return float(np.exp(np.interp(0.0, np.log(ratio[pair]), np.log(noises[pair]))))


def _rms(values: np.ndarray, axis: Any) -> np.ndarray:
    return np.sqrt(np.mean(values**2, axis=axis))


@click.command()
@click.option("--model", "models", multiple=True, help="Bundle or model folder; repeat.  [default: the digits models]")
@click.option("--num-samples", type=click.IntRange(2), default=16, show_default=True)
@click.option("--steps", type=click.IntRange(15), default=50, show_default=True)
@click.option("--cache", default="out/theory", show_default=True, type=click.Path(path_type=Path), help="For bundles.")
@click.option("--figures", default="out/theory", show_default=True, type=click.Path(path_type=Path))
def main(models: tuple[str, ...], num_samples: int, steps: int, cache: Path, figures: Path) -> None:
    """Record trajectories, and draw the theory beside them."""
    rows = {}
    for model in models or sorted(map(str, (ROOT / "examples" / "models").glob("digits-*"))):
        name = Path(model).name
        click.echo(f"{name} ...", err=True)
        subject = open_compared(model, cache / name, guidance_scale=2.0)
        recording = record(subject.workload, steps, num_samples)
        rows[name] = {
            "schemes": measure_schemes(recording),
            "means": measure_means(recording),
            **measure_orders(recording),
            "crossover": measure_crossover(recording),
        }
    figures.mkdir(parents=True, exist_ok=True)
    for name, picture in draw_all(rows).items():
        (figures / f"{name}.png").write_bytes(picture)
    command = shlex.join(["python", "benchmarks/theory.py", *sys.argv[1:]])
    head = {"benchmark": "theory", "command": command, "num_samples": num_samples, "steps": steps, "ratio": RATIO}
    short = json.loads(json.dumps(rows), parse_float=lambda text: float(f"{float(text):.4g}"))
    click.echo(json.dumps({**head, "machine": describe_machine(), "models": short}))


if __name__ == "__main__":
    main()
