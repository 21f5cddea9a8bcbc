"""Recording full trajectories for calibration."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import Setting, Workload
from zeus_trt.machine import LIBRARIES, find_version
from zeus_trt.runtime import Step
from zeus_trt.runtime.pipelines.acceleration import find_denoisers
from zeus_trt.zeus_graph import Plan, SolverProgram, json_file
from zeus_trt.zeus_graph.plan import FULL

logger = logging.getLogger(__name__)
_COLUMNS = 1 << 16  # elements of an output that become float64 at a time


def record(
    workload: Workload,
    setting: Setting,
    numbers: Sequence[int],
    *,
    batch: int = 1,
    quantized: bool = False,
    probes: bool = True,
    path: Path | None = None,
    on_calls: Callable[[int], Any] | None = None,
) -> TrajectoryStats:
    """Runs full trajectories, and keeps the numbers that scoring plans needs.

    Every batch runs in full once. With ``probes`` it runs twice more, by ``probe_plans``, to see how outputs respond to
    moved inputs.
    The outputs of one batch are held meanwhile: N latents per sample. With ``quantized`` they run in full once more,
    and the quantized engine is called at the same inputs.

    Args:
        workload: The model.
        setting: How it runs; its plan is not read.
        numbers: Which samples.
        batch: Samples at a time. With 1, a resumed recording is equal to the bit to one in a single go.
        quantized: Record the errors of the quantized engine.
        probes: Record how outputs respond to moved inputs.
        path: A file that is written, whole, after every batch. Samples that it already holds are not run again.
        on_calls: Called after every batch with its number of denoiser evaluations.

    Raises:
        ZeusError: The solver is not linear, the outputs are not finite, or ``path`` cannot be read or written.
    """
    program = workload.program(setting.num_steps, setting.solver)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    tag = make_tag(workload, program, setting, quantized, probes)
    stats = _resume(path, tag)
    if stats is not None:
        logger.info("found %d recorded trajectories in %s", len(stats.numbers), path)
    plans = probe_plans(program.num_evaluations) if probes else ()
    missing = [number for number in numbers if stats is None or number not in stats.numbers]
    for start in range(0, len(missing), batch):
        some = missing[start : start + batch]
        part = _record_batch(workload, program, setting, some, tag, plans)
        if quantized:
            part = _add_quantized(workload, setting, some, part)
        stats = part if stats is None else stats.extend(part)
        if path is not None:
            stats.save(path)
        if on_calls:
            on_calls(part.calls)
    if stats is None:
        raise ZeusError("trajectories: got 0; expected one at least. Give more.")
    return stats.select(numbers)


def make_tag(
    workload: Workload, program: SolverProgram, setting: Setting, quantized: bool = False, probes: bool = True
) -> dict[str, Any]:
    """All that recorded trajectories depend on, except their numbers: JSON data."""
    return json_file.plain(
        {
            "workload": workload.describe(),
            "solver": setting.solver,
            "fingerprint": program.fingerprint,
            "num_steps": setting.num_steps,
            "backend": setting.backend,
            "engine": _describe_engine(workload),
            "versions": {name: find_version(name) for name in LIBRARIES},
            **({"quantized": True} if quantized else {}),
            **({} if probes else {"probes": False}),
        }
    )


def _describe_engine(workload: Workload) -> dict[str, Any]:
    """What runs beside the weights: the graph, and the dtype and the device of a pipeline."""
    bundle, pipeline = getattr(workload, "bundle", None), getattr(workload, "pipeline", None)
    module = next(iter(find_denoisers(pipeline).values())) if pipeline is not None else None
    return {
        "graph": bundle and {name: entry.sha256 for name, entry in bundle.manifest.files.items()},
        "dtype": module and str(module.dtype),
        "device": module and str(module.device),
    }


def probe_plans(num_evaluations: int) -> tuple[Plan, ...]:
    """Plans that move model inputs a little: dense and sparse, so that most evaluations are full in one of them."""
    counts = {max(min(3, num_evaluations), round(share * num_evaluations)) for share in (0.44, 0.3)}
    return tuple(Plan.spread(num_evaluations, nfe) for nfe in sorted(counts))


def _resume(path: Path | None, tag: dict[str, Any]) -> TrajectoryStats | None:
    if path is None or not Path(path).exists():
        return None
    found = TrajectoryStats.load(path)
    if found.tag != tag:
        other = sorted(name for name in tag if found.tag.get(name) != tag[name])
        raise ZeusError(
            f"recorded trajectories: got {path}, recorded with another {' and '.join(other)}; expected the same. "
            "Give another file, or delete it."
        )
    return found


def _record_batch(
    workload: Workload,
    program: SolverProgram,
    setting: Setting,
    numbers: Sequence[int],
    tag: dict[str, Any],
    plans: Sequence[Plan],
) -> TrajectoryStats:
    count, outputs = program.num_evaluations, list[torch.Tensor]()
    initial: list[torch.Tensor] = []
    responses = np.full((len(numbers), len(plans), count), np.nan)

    def run(plan: Plan, on_step: Callable[[Step], None]) -> int:
        return workload.run(replace(setting, plan=plan), numbers, on_step).report.nfe * len(numbers)

    def keep(step: Step) -> None:
        outputs.append(_flatten(step.output).clone())
        if not initial:  # undone from the first step; some solvers end after one
            of_sample, of_output = program.matrices[0][0]
            initial.append((_flatten(step.latents) - float(of_output) * outputs[0]) / float(of_sample or 1.0))

    calls = run(Plan("F" * count), keep)
    whole = multiply([*initial, *outputs])
    products = whole[:, 1:, 1:]
    if not np.isfinite(products).all():
        raise ZeusError("trajectories: got outputs that are not finite; expected numbers. Run the model in full first.")
    for place, plan in enumerate(plans):
        calls += run(plan, _Probe(program, outputs, responses[:, place]).see)
    return TrajectoryStats(products, responses, tuple(numbers), tag, calls, initial=whole[:, 0])


def _add_quantized(
    workload: Workload, setting: Setting, numbers: Sequence[int], part: TrajectoryStats
) -> TrajectoryStats:
    """The same trajectories with the noise of the quantized engine."""
    noise = [
        (_flatten(quantized) - _flatten(full)).double().square().mean(1)
        for full, quantized in workload.compare(setting, numbers)
    ]
    calls = part.calls + 2 * len(noise) * len(numbers)
    return replace(part, noise=torch.stack(noise, 1).cpu().numpy(), calls=calls)


class _Probe:
    """Computes how far a skipped run has moved from the full one, by the solver's matrices."""

    def __init__(self, program: SolverProgram, outputs: Sequence[torch.Tensor], responses: np.ndarray):
        self._program, self._outputs, self._responses = program, outputs, responses
        self._moved = [torch.zeros_like(outputs[0])]  # of the solver's state

    def see(self, step: Step) -> None:
        change = _flatten(step.output) - self._outputs[step.index]
        moved = _combine(self._program.input_rows[step.index], self._moved)
        if step.kind in FULL:
            size = moved.double().square().sum(1)
            slope = (moved.double() * change.double()).sum(1) / size
            self._responses[:, step.index] = torch.where(size > 0, slope, torch.nan).cpu().numpy()
        rows = self._program.matrices[step.index]
        self._moved = [_combine(row, [*self._moved, change]) for row in rows]


def _flatten(output: torch.Tensor) -> torch.Tensor:
    return output.detach().float().flatten(1)


def _combine(row: np.ndarray, latents: Sequence[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros_like(latents[0])
    for weight, latent in zip(row, latents, strict=True):
        if weight:
            total = total.add(latent, alpha=float(weight))
    return total


def multiply(outputs: Sequence[torch.Tensor]) -> np.ndarray:
    """(batch, N, N) float64: mean products of the outputs of every sample."""
    size = outputs[0].shape[1]
    total = torch.zeros(len(outputs[0]), len(outputs), len(outputs), dtype=torch.float64, device=outputs[0].device)
    for start in range(0, size, _COLUMNS):
        block = torch.stack([output[:, start : start + _COLUMNS] for output in outputs], 1).double()
        total += block @ block.mT
    return (total / size).cpu().numpy()
