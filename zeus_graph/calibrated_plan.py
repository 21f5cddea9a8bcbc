"""A plan that was chosen for a model, a solver and a number of steps, and how it was chosen."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.counts import show
from zeus_trt.zeus_graph.plan import PRESETS, Plan
from zeus_trt.zeus_graph.predictor import Predictor

_THING = "calibrated plan"
_ADVICE = "Calibrate again."
_Decibels = float | Literal["inf", "-inf", "nan"]  # JSON has no number for these


@dataclass(frozen=True)
class _Measured:
    """The fields of a measured plan in a file."""

    plan: str
    predictor: dict[str, Any]
    psnr_db: _Decibels


@dataclass(frozen=True)
class _File(_Measured):
    """The fields of a file, as ``CalibratedPlan.to_json`` writes them."""

    format: int
    calibrated: bool
    predicted_db: _Decibels
    uniform: tuple[_Measured, ...]
    num_steps: int
    solver: str
    fingerprint: str
    backend: str
    workload: dict[str, Any]
    numbers: dict[str, tuple[int, int]]
    calls: dict[str, int]
    digest: str

    def __post_init__(self) -> None:
        if not self.uniform or self.num_steps < 1 or min(0, *self.calls.values(), *sum(self.numbers.values(), ())) < 0:
            raise ValueError("it has no uniform plan, no steps, or a negative number")
        if missing := {"held_out"} - self.numbers.keys() | {"recording", "measuring"} - self.calls.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")


@dataclass(frozen=True)
class Measured:
    """A plan with its predictor, and its PSNR in dB to the full run, mean over the held-out samples."""

    plan: Plan
    predictor: Predictor
    psnr_db: float

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {"plan": str(self.plan), "predictor": self.predictor.to_json(), "psnr_db": json_file.plain(self.psnr_db)}

    @classmethod
    def from_file(cls, file: _Measured) -> "Measured":
        """Reads what ``to_json`` wrote."""
        return cls(Plan(file.plan), Predictor.from_json(file.predictor), float(file.psnr_db))


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

    @property
    def plan(self) -> Plan:
        """The plan to run, with its predictor."""
        return replace(self.chosen.plan, predictor=self.chosen.predictor)

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

    def check(self, running: Mapping[str, Any], num_steps: int, fingerprint: str) -> "CalibratedPlan":
        """Returns the plan if it belongs to this model, solver and number of steps.

        Args:
            running: What is about to run, in the words of ``workload``.
            num_steps: Its solver steps.
            fingerprint: Of its traced solver.

        Raises:
            ZeusError: Naming what differs.
        """
        pairs = [
            ("num_steps", self.num_steps, num_steps),
            ("model weights", self.workload.get("weights_sha256"), running.get("weights_sha256")),
            ("solver", self.fingerprint, fingerprint),
        ]
        for name, found, expected in pairs:
            if found != expected:
                raise _foreign(name, found, expected)
        return self

    def list_differences(self, running: Mapping[str, Any], backend: str) -> list[str]:
        """Sentences about what runs otherwise than it was calibrated: guidance, and the engine."""
        found = {"guidance_scale": running.get("guidance_scale"), "backend": backend}
        made = {"guidance_scale": self.workload.get("guidance_scale"), "backend": self.backend}
        return [
            f"the plan was calibrated with {name} {made[name]}, and runs with {value}: its quality there is not known"
            for name, value in found.items()
            if made[name] != value
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
        file = strict_json.build(data, _File, _THING, advice=_ADVICE)
        if file.digest != json_file.digest({key: value for key, value in data.items() if key != "digest"}):
            raise ZeusError(
                f"{_THING}: got damaged content (its digest is that of other content); expected a file of "
                f"`zeus-trt calibrate`. {_ADVICE}"
            )
        return cls(
            chosen=Measured.from_file(file),
            calibrated=file.calibrated,
            predicted_db=float(file.predicted_db),
            uniform=tuple(Measured.from_file(one) for one in file.uniform),
            num_steps=file.num_steps,
            solver=file.solver,
            fingerprint=file.fingerprint,
            backend=file.backend,
            workload=file.workload,
            numbers=file.numbers,
            calls=file.calls,
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes a JSON file, whole or not at all."""
        json_file.save(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "CalibratedPlan":
        """Reads a file that ``save`` wrote; raises ZeusError for any other."""
        return cls.from_json(json_file.load(path, _THING))


def _foreign(name: str, found: Any, expected: Any) -> ZeusError:
    return ZeusError(
        f"{_THING}: got one made for {name} {str(found)[:12]}; expected {str(expected)[:12]}. "
        "Calibrate again for what is about to run."
    )


def read_plan(text: str | os.PathLike) -> Plan | CalibratedPlan:
    """Reads a plan that a user gives: its letters, or the path of a .json file.

    Args:
        text: Letters such as ``FFXRF``, a file that ``zeus-trt calibrate`` wrote, or one with the JSON of a
            ``Plan``.

    Raises:
        ZeusError: None of these.
    """
    if not isinstance(text, str | os.PathLike):
        raise ZeusError(f"plan: got {show(text)}; expected letters such as FFXRF, or the path of a file. Change it.")
    if isinstance(text, str) and not text.endswith(".json"):
        return Plan(text)
    data = json_file.load(text, "plan")
    is_calibrated = isinstance(data, dict) and "plan" in data
    return CalibratedPlan.from_json(data) if is_calibrated else Plan.from_json(data)


def load_plan(source: str | os.PathLike | Plan | CalibratedPlan, num_steps: int | None = None) -> Plan:
    """Reads a plan that can be given wherever a plan is taken; a calibrated one brings its predictor.

    It belongs to the model, the solver and the number of steps that it was calibrated for: its length is checked where
    it runs, and ``CalibratedPlan.load(path).check(...)`` checks the rest.

    Args:
        source: Letters such as ``FFXRF``, the path of a .json file as ``read_plan`` takes it, the name of a preset:
            ``medium``, ``fast`` or ``turbo``; or a plan.
        num_steps: Evaluations of the denoiser, which a preset needs; another plan must have that length.

    Raises:
        ZeusError: None of these, or another length.
    """
    if isinstance(source, str) and source in PRESETS:
        if num_steps is None:
            raise ZeusError(f"num_steps: got none for the preset {source}; expected a number of steps. Give it.")
        return Plan.uniform(num_steps, PRESETS[source])
    found = source if isinstance(source, Plan | CalibratedPlan) else read_plan(source)
    plan = found.plan if isinstance(found, CalibratedPlan) else found
    return plan if num_steps is None else plan.check_length(num_steps)
