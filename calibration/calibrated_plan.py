"""A plan that was chosen for a model, a solver and a number of steps, and how it was chosen."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.manifest import FILE_NAME
from zeus_trt.runtime.solver import Solver
from zeus_trt.zeus_graph import Predictor, SolverProgram, StepPlan, json_file

LABEL_GUIDANCE = 2.0
"""Guidance of models of class labels, where nothing is asked."""

_THING = "calibrated plan"


@dataclass(frozen=True)
class Measured:
    """A plan with its predictor, and its PSNR in dB to the full run, mean over the held-out samples."""

    plan: StepPlan
    predictor: str | Predictor
    psnr_db: float

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        predictor = Predictor.parse(self.predictor).to_json()
        return {"plan": str(self.plan), "predictor": predictor, "psnr_db": json_file.plain(self.psnr_db)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Measured":
        """Reads what ``to_json`` wrote."""
        return cls(StepPlan(data["plan"]), Predictor.from_json(data["predictor"]), float(data["psnr_db"]))


@dataclass(frozen=True)
class CalibratedPlan:
    """What calibration found.

    Args:
        chosen: The plan to run: the calibrated one, or the best uniform one where that measured better.
        calibrated: Whether ``chosen`` is the calibrated one.
        predicted_db: PSNR of the latents of ``chosen`` that was predicted from the recorded trajectories.
        uniform: The best uniform plans of as many full steps, measured on the same samples, best first.
        num_steps: Solver steps.
        solver: Its name, as in ``Setting``.
        fingerprint: Of the traced solver.
        backend: The engine, by whose precision it was measured.
        workload: What was sampled: model, weights, guidance, seed ...
        numbers: Samples by use: ``trajectories``, ``validation``, ``held_out``: first and count.
        calls: Denoiser evaluations by use: ``recording``, ``measuring``.
    """

    chosen: Measured
    calibrated: bool
    predicted_db: float
    uniform: tuple[Measured, ...]
    num_steps: int
    solver: str
    fingerprint: str
    backend: str
    workload: Mapping[str, Any]
    numbers: Mapping[str, tuple[int, int]]
    calls: Mapping[str, int]

    def describe(self) -> str:
        """The plan for a person, and what it was measured to be worth."""
        best = self.uniform[0]
        gain = self.chosen.psnr_db - best.psnr_db
        said = (
            f"{gain:+.1f} dB to the best uniform plan ({best.psnr_db:.1f} dB, {best.plan})"
            if self.calibrated
            else "calibration did not beat the best uniform plan: that one is kept"
        )
        return (
            f"{self.chosen.plan.describe()}\n"
            f"PSNR           {self.chosen.psnr_db:.1f} dB on {self.numbers['held_out'][1]} held-out samples\n"
            f"gain           {said}\n"
            f"spent          {self.calls['recording']} evaluations recording, {self.calls['measuring']} measuring"
        )

    def check(self, program: SolverProgram, weights_sha256: str | None = None) -> "CalibratedPlan":
        """Returns the plan if it belongs to this solver, number of steps and model.

        Raises:
            ZeusError: Naming what differs.
        """
        model = self.workload.get("weights_sha256")
        pairs = [
            ("num_steps", self.num_steps, program.num_steps),
            ("solver", self.fingerprint, program.fingerprint),
            ("model weights", model, weights_sha256),
        ]
        for name, found, expected in pairs:
            if found != expected and None not in (found, expected):
                raise ZeusError(
                    f"{_THING}: got one made for {name} {str(found)[:12]}; expected {str(expected)[:12]}, what is about to run. "
                    "Calibrate again for it."
                )
        return self

    def list_differences(self, **running: Any) -> list[str]:
        """Sentences about what is run otherwise than it was calibrated: guidance_scale, backend ..."""
        made = {**self.workload, "backend": self.backend}
        return [
            f"calibrated with {name} {made[name]}, run with {value}: its quality was not measured there"
            for name, value in running.items()
            if value is not None and name in made and made[name] != value
        ]

    def to_json(self) -> dict[str, Any]:
        """As JSON data, with a digest of it; ``from_json`` reads it back."""
        content = json_file.plain(
            {
                "format": json_file.FORMAT,
                **self.chosen.to_json(),
                "calibrated": self.calibrated,
                "predicted_db": self.predicted_db,
                "uniform": [one.to_json() for one in self.uniform],
                "num_steps": self.num_steps,
                "solver": self.solver,
                "fingerprint": self.fingerprint,
                "backend": self.backend,
                "workload": self.workload,
                "numbers": self.numbers,
                "calls": self.calls,
            }
        )
        return {**content, "digest": json_file.digest(content)}

    @classmethod
    def from_json(cls, data: Any) -> "CalibratedPlan":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: Another format, or damaged content.
        """
        json_file.check_format(data, _THING)
        try:
            content = {key: value for key, value in data.items() if key != "digest"}
            if data["digest"] != json_file.digest(content):
                raise ValueError("its digest is that of other content")
            return cls(
                chosen=Measured.from_json(data),
                calibrated=bool(data["calibrated"]),
                predicted_db=float(data["predicted_db"]),
                uniform=tuple(Measured.from_json(one) for one in data["uniform"]),
                num_steps=int(data["num_steps"]),
                solver=str(data["solver"]),
                fingerprint=str(data["fingerprint"]),
                backend=str(data["backend"]),
                workload=data["workload"],
                numbers={use: (int(first), int(count)) for use, (first, count) in data["numbers"].items()},
                calls=data["calls"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ZeusError(
                f"{_THING}: got damaged content ({error}); expected a file of `zeus-trt calibrate`. Calibrate again."
            ) from error

    def save(self, path: str | os.PathLike) -> None:
        """Writes a JSON file, whole or not at all."""
        json_file.save(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "CalibratedPlan":
        """Reads a file that ``save`` wrote; raises ZeusError where there is none."""
        return cls.from_json(json_file.load(path))


def choose_plan(
    text: str,
    model: str,
    num_steps: int,
    predictor: str,
    warn: Callable[[str], Any],
    **running: Any,
) -> tuple[StepPlan, str | Predictor]:
    """Reads a plan: its letters, or a file of ``zeus-trt calibrate``, which brings its predictor.

    Args:
        text: The letters, or the path of a .json file.
        model: What is about to run it; a bundle is checked, of a pipeline nothing is known yet.
        num_steps: Solver steps.
        predictor: Of a plan that is letters.
        warn: Takes a sentence for every setting that is not the one of the calibration.
        **running: Settings by name, such as guidance_scale; None is not known.

    Raises:
        ZeusError: No plan, or one that was made for another model, solver or number of steps.
    """
    if not text.endswith(".json"):
        return StepPlan(text), predictor
    found = CalibratedPlan.load(text)
    if (Path(model) / FILE_NAME).is_file():
        bundle = Bundle.open(model)
        if running.get("guidance_scale") is None:
            running["guidance_scale"] = LABEL_GUIDANCE if bundle.manifest.labels else 1.0
        found.check(Solver(bundle).program(num_steps), bundle.manifest.weights_sha256)
    else:
        warn(f"{text}: whether it was made for this pipeline's weights and solver is not checked")
    for sentence in found.list_differences(**running):
        warn(f"{text}: {sentence}")
    return found.chosen.plan, found.chosen.predictor
