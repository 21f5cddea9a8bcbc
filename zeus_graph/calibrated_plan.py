"""A plan that was chosen for a model, a solver and a number of steps, and how it was chosen."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.counts import is_finite
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.predictor import Predictor

_THING = "calibrated plan"
_ADVICE = "Calibrate again."
OBJECTIVES = MEAN, WORST_DECILE = "mean", "worst-decile"
"""What a calibration may go by: the mean over samples, or over the worst tenth of them."""

_UNUSED: Mapping[str, Any] = {"quantized_cost": None, "objective": MEAN, "budget": None, "solvers": {}}  # left out
_NO_NUMBERS = ("inf", "-inf", "nan")  # JSON has no number for these


@dataclass(frozen=True)
class Measured:
    """A plan with its predictor, and its PSNR in dB to the full run on the held-out samples.

    Args:
        plan: The plan.
        psnr_db: Mean over the samples.
        worst_db: Mean over the worst tenth of them; None in files of earlier versions.
    """

    plan: Plan
    psnr_db: float
    worst_db: float | None = None

    def score(self, objective: str) -> float:
        """The figure in dB that ``objective`` goes by."""
        return self.psnr_db if objective == MEAN or self.worst_db is None else self.worst_db

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        figures = {"psnr_db": self.psnr_db, **({} if self.worst_db is None else {"worst_db": self.worst_db})}
        return {"plan": str(self.plan), "predictor": self.plan.rule.to_json(), **json_file.plain(figures)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Measured":
        """Reads what ``to_json`` wrote; raises ZeusError for anything else."""
        own = {name: value for name, value in data.items() if name != "predictor"}
        plan = Plan(own.get("plan", ""), Predictor.from_json(data.get("predictor")))
        figures = {name: _read_number(own[name]) for name in ("psnr_db", "worst_db") if name in own}
        return _build({**own, "plan": plan, **figures}, cls)


@dataclass(frozen=True)
class Served:
    """One of the solvers that a plan serves.

    Args:
        fingerprint: Of the traced solver.
        psnr_db: PSNR of the plan on those held-out samples that this solver ran, in dB.
        uniform_db: The same of the best uniform plan.
    """

    fingerprint: str
    psnr_db: float
    uniform_db: float


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
        objective: What the search and the choice went by: ``mean``, or ``worst-decile`` of the samples.
        budget: Full steps that were asked for, where ``chosen`` has fewer since it did better.
        solvers: Where the plan serves several solvers: each of them by name, ``solver`` among them.
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
    objective: str = MEAN
    budget: float | None = None
    solvers: Mapping[str, Served] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.uniform or self.num_steps < 1 or min(0, *self.calls.values(), *sum(self.numbers.values(), ())) < 0:
            raise ValueError("it has no uniform plan, no steps, or a negative number")
        if missing := {"held_out"} - self.numbers.keys() | {"recording", "measuring"} - self.calls.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        if self.objective not in OBJECTIVES or (self.solvers and self.solver not in self.solvers):
            raise ValueError("its objective is unknown, or its solvers leave out its solver")

    @property
    def plan(self) -> Plan:
        """The plan to run, which knows this calibration."""
        return replace(self.chosen.plan, source="calibrated", calibration=self)

    @property
    def fingerprints(self) -> frozenset[str]:
        """Those of the traced solvers that the plan is for."""
        return frozenset([self.fingerprint, *(one.fingerprint for one in self.solvers.values())])

    def describe(self) -> str:
        """The plan for a person, and what it was measured to be worth."""
        return "\n".join([self.chosen.plan.describe(), *(f"{name:<15}{said}" for name, said in self._list_facts())])

    def _list_facts(self) -> Iterator[tuple[str, str]]:
        best, chosen, cost = self.uniform[0], self.chosen, self.quantized_cost
        own, other = chosen.score(self.objective), best.score(self.objective)
        if cost:
            yield "cost", f"{chosen.plan.cost(cost):.2f} calls, a quantized one counts {cost:g}"
        if self.budget is not None:
            yield (
                "budget",
                f"{self.budget:g} full steps: this plan of {chosen.plan.nfe} did better, and takes their place",
            )
        scale: Any = self.workload.get("guidance_scale")
        if _is_range(scale):
            yield "guidance", f"calibrated over {scale[0]:g} to {scale[1]:g}"
        worst = "" if chosen.worst_db is None else f", {chosen.worst_db:.1f} dB on the worst tenth"
        yield "PSNR", f"{chosen.psnr_db:.1f} dB on {self.numbers['held_out'][1]} held-out samples{worst}"
        for name, one in self.solvers.items():
            lost = " (worse than uniform: calibrate it alone)" if one.psnr_db < one.uniform_db else ""
            yield name, f"{one.psnr_db:.1f} dB, {one.psnr_db - one.uniform_db:+.1f} dB to the best uniform plan{lost}"
        where = "" if self.objective == MEAN else " on the worst tenth"
        yield (
            "gain",
            (
                f"{own - other:+.1f} dB{where} to the best uniform plan ({other:.1f} dB, {best.plan})"
                if self.calibrated
                else f"calibration did not beat the best uniform plan{where}: that one is kept"
            ),
        )
        yield "spent", f"{self.calls['recording']} evaluations recording, {self.calls['measuring']} measuring"

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
            ("solver", fingerprint if fingerprint in self.fingerprints else self.fingerprint, fingerprint),
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
            if not is_made_for(made[name], value)
        ]

    def to_json(self) -> dict[str, Any]:
        """As JSON data, with a digest of it; ``from_json`` reads it back."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "chosen"}
        own["solvers"] = {name: asdict(one) for name, one in self.solvers.items()}
        own = {name: value for name, value in own.items() if name not in _UNUSED or value != _UNUSED[name]}
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
        names = ("plan", "predictor", "psnr_db", "worst_db")
        chosen = Measured.from_json({name: own.pop(name) for name in names if name in own})
        uniform = _build(own.get("uniform"), tuple[dict[str, Any], ...])
        read = {
            "chosen": chosen,
            "uniform": tuple(map(Measured.from_json, uniform)),
            "predicted_db": _read_number(own.get("predicted_db")),
        }
        if "solvers" in own:
            served = _build(own["solvers"], dict[str, dict[str, Any]])
            numbers = {name: {key: _read_number(value) for key, value in one.items()} for name, one in served.items()}
            read["solvers"] = _build(numbers, dict[str, Served])
        return _build({**own, **read}, cls)

    def save(self, path: str | os.PathLike) -> None:
        """Writes a JSON file, whole or not at all."""
        json_file.save(path, self.to_json())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "CalibratedPlan":
        """Reads a file that ``save`` wrote; raises ZeusError for any other."""
        return cls.from_json(json_file.load(path, _THING))


def is_made_for(made: Any, running: Any) -> bool:
    """Whether what runs is what a plan was calibrated with, or within the range of it."""
    return made[0] <= running <= made[1] if _is_range(made) and is_finite(running) else made == running


def _is_range(made: Any) -> bool:
    return isinstance(made, list | tuple) and len(made) == 2 and all(map(is_finite, made))


def _foreign(name: str, found: Any, expected: Any) -> ZeusError:
    return ZeusError(
        f"{_THING}: got one made for {name} {str(found)[:12]}; expected {str(expected)[:12]}. "
        "Calibrate again for this model and solver."
    )


def _build(data: Any, type_: Any) -> Any:
    return strict_json.build(data, type_, _THING, advice=_ADVICE)


def _read_number(value: Any) -> Any:
    return float(value) if value in _NO_NUMBERS else value
