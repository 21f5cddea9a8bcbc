"""A plan that was chosen for a model, a solver and a number of steps, and how it was chosen."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.predictor import Predictor

_THING = "calibrated plan"
_ADVICE = "Calibrate again."
_NO_NUMBERS = ("inf", "-inf", "nan")  # JSON has no number for these


@dataclass(frozen=True)
class Measured:
    """A plan with its predictor, and its PSNR in dB to the full run, mean over the held-out samples."""

    plan: Plan
    psnr_db: float

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        predictor = self.plan.rule.to_json()
        return {"plan": str(self.plan), "predictor": predictor, "psnr_db": json_file.plain(self.psnr_db)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Measured":
        """Reads what ``to_json`` wrote; raises ZeusError for anything else."""
        own = {name: value for name, value in data.items() if name != "predictor"}
        plan = Plan(own.get("plan", ""), Predictor.from_json(data.get("predictor")))
        return _build({**own, "plan": plan, "psnr_db": _read_number(own.get("psnr_db"))}, cls)


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
        quantized_cost: What a call of the quantized engine costs, in calls of the full one, where ``Q`` was allowed.
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
    quantized_cost: float | None = None

    def __post_init__(self) -> None:
        if not self.uniform or self.num_steps < 1 or min(0, *self.calls.values(), *sum(self.numbers.values(), ())) < 0:
            raise ValueError("it has no uniform plan, no steps, or a negative number")
        if missing := {"held_out"} - self.numbers.keys() | {"recording", "measuring"} - self.calls.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")

    @property
    def plan(self) -> Plan:
        """The plan to run, which knows this calibration."""
        return replace(self.chosen.plan, source="calibrated", calibration=self)

    def describe(self) -> str:
        """The plan for a person, and what it was measured to be worth."""
        best = self.uniform[0]
        gain = self.chosen.psnr_db - best.psnr_db
        said = (
            f"{gain:+.1f} dB to the best uniform plan ({best.psnr_db:.1f} dB, {best.plan})"
            if self.calibrated
            else "calibration did not beat the best uniform plan: that one is kept"
        )
        plan, cost = self.chosen.plan, self.quantized_cost
        priced = f"cost           {plan.cost(cost):.2f} calls, a quantized one counts {cost:g}\n" if cost else ""
        return (
            f"{plan.describe()}\n"
            f"{priced}"
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
        """Sentences about what runs otherwise than it was calibrated: guidance, adapters, and the engine."""
        names = ("guidance_scale", "adapter")
        found = {**{name: running.get(name) for name in names}, "backend": backend}
        made = {**{name: self.workload.get(name) for name in names}, "backend": self.backend}
        return [
            f"the plan was calibrated with {name} {made[name]}, and runs with {value}: its quality there is not known"
            for name, value in found.items()
            if made[name] != value
        ]

    def to_json(self) -> dict[str, Any]:
        """As JSON data, with a digest of it; ``from_json`` reads it back."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "chosen"}
        if self.quantized_cost is None:  # as files were before Q
            del own["quantized_cost"]
        own["uniform"] = [one.to_json() for one in self.uniform]
        content = json_file.plain({"format": json_file.FORMAT, **self.chosen.to_json(), **own})
        return {**content, "digest": json_file.digest(content)}

    @classmethod
    def from_json(cls, data: Any) -> "CalibratedPlan":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: Another format, or damaged content.
        """
        json_file.check_format(data, _THING)
        own = dict(data)
        if own.pop("digest", None) != json_file.digest(own):
            raise ZeusError(
                f"{_THING}: got damaged content (its digest is that of other content); expected a file of "
                f"`zeus-trt calibrate`. {_ADVICE}"
            )
        del own["format"]
        chosen = Measured.from_json({name: own.pop(name, None) for name in ("plan", "predictor", "psnr_db")})
        uniform = _build(own.get("uniform"), tuple[dict[str, Any], ...])
        read = {
            "chosen": chosen,
            "uniform": tuple(map(Measured.from_json, uniform)),
            "predicted_db": _read_number(own.get("predicted_db")),
        }
        return _build({**own, **read}, cls)

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
        "Calibrate again for this model and solver."
    )


def _build(data: Any, type_: Any) -> Any:
    return strict_json.build(data, type_, _THING, advice=_ADVICE)


def _read_number(value: Any) -> Any:
    return float(value) if value in _NO_NUMBERS else value
