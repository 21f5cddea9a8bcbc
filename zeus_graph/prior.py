"""Plans without calibration: what the outputs of several models have in common serves a model that was never recorded.

Along a trajectory the sample is (1 - s) x0 + s noise, up to a scale, where x0 and noise are what the output predicts at
the noise level s. Its slope u = noise - x0 is the output of a flow model, and with one sample it determines x0 and
noise at every level, so any model's output on any schedule: epsilon, v and flow share one kernel.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import json_file
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.plan_search import check_nfe, descend, make_starts
from zeus_trt.zeus_graph.predictor import Predictor
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.surrogate import Surrogate, list_rows, weigh_error

logger = logging.getLogger(__name__)

ROUGHNESS = 4e-3
"""How much of each output, of its RMS, is taken to be like no other output: a model may be rougher than those known."""

FEEDBACK = (0.5, 1.5)
"""How outputs of a model may respond to errors, in units of what was measured: each model counts with both."""

_ORDER = 3  # past full outputs that a skipped step reads
_REACH = 6  # of the first moves: how far a full step is shifted
_WIDE = 64  # evaluations, up to which it may then go anywhere
_LEAST = 1e-3  # of the signal and the noise in a sample
_LEAST_ERROR = 1e-300
_THING = "prior"
_ADVICE = "Install zeus-trt again."

_Laid = tuple[np.ndarray, np.ndarray]  # what Kernel.lay_on returns


@dataclass(frozen=True, eq=False)
class Kernel:
    """The outputs of one model, by noise level: M levels, rank R. Products are means over pixels and trajectories.

    Args:
        name: Whose.
        parameterization: What its denoiser predicted: ``epsilon``, ``v``, ``sample`` or ``flow``.
        levels: (M,): s, rising; 1 is noise alone.
        velocity: (M, R): vectors whose inner products are those of u = noise - x0.
        sample: (R,): that of the sample (1 - s) x0 + s noise at the last level.
        response: (M,): by how much x0 moves when sample / (1 - s) moves by one.
        source: What it was recorded from, JSON data.
    """

    name: str
    parameterization: str
    levels: np.ndarray
    velocity: np.ndarray
    sample: np.ndarray
    response: np.ndarray
    source: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count, rank = self.velocity.shape
        if self.levels.shape != (count,) or self.response.shape != (count,) or self.sample.shape != (rank,):
            raise ValueError("its parts do not fit each other")

    def lay_on(self, program: SolverProgram) -> tuple[np.ndarray, np.ndarray]:
        """The outputs on a solver's schedule: (N, R), and (N,) by how much each moves with its model input.

        Raises:
            ZeusError: A solver whose noise levels or whose parameterization are not known.
        """
        signal, noise = find_levels(program)
        wanted = noise / (signal + noise)
        x0, eps = self._predict(wanted)
        signal, noise = np.maximum(signal, _LEAST), np.maximum(noise, _LEAST)
        of_x0 = np.interp(wanted, self.levels, self.response) / signal
        of_eps = (1 - np.interp(wanted, self.levels, self.response)) / noise
        to_x0, to_eps = mix_output(find_parameterization(program), signal, noise)
        return to_x0[:, None] * x0 + to_eps[:, None] * eps, to_x0 * of_x0 + to_eps * of_eps

    def _predict(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x0 and noise at noise levels, (N, R) each: the sample is integrated from the last level."""
        grid = np.unique(np.concatenate([self.levels, wanted]))
        slope = np.stack([np.interp(grid, self.levels, one) for one in self.velocity.T], axis=1)
        areas = np.diff(grid)[:, None] * (slope[1:] + slope[:-1]) / 2
        sample = np.concatenate([np.zeros((1, slope.shape[1])), np.cumsum(areas, axis=0)])
        last = np.searchsorted(grid, self.levels[-1])
        sample += self.sample - sample[last]
        places = np.searchsorted(grid, wanted)
        levels = wanted[:, None]
        return sample[places] - levels * slope[places], sample[places] + (1 - levels) * slope[places]

    def to_json(self) -> dict[str, Any]:
        """As JSON data, numbers of four digits."""
        numbers = {name: _round(getattr(self, name)) for name in ("levels", "velocity", "sample", "response")}
        named = {"name": self.name, "parameterization": self.parameterization, "source": dict(self.source)}
        return {**named, **numbers}


def find_parameterization(program: SolverProgram) -> str:
    """What the denoiser predicts: ``epsilon``, ``v``, ``sample`` or ``flow``.

    Raises:
        ZeusError: Something else, or it is not known.
    """
    config, said = program.config, program.prediction_type
    if said == "flow_prediction" or config.get("use_flow_sigmas") or program.scheduler.startswith("FlowMatch"):
        return "flow"
    known = {"epsilon": "epsilon", "v_prediction": "v", "sample": "sample"}
    if said not in known or "sigma_data" in config:  # EDM scales what goes in and what comes out
        raise _refuse(program, f"a denoiser that predicts {said} in its own scale")
    return known[said]


def find_levels(program: SolverProgram) -> tuple[np.ndarray, np.ndarray]:
    """How much of x0 and of noise is in each model input, (N,) each.

    Raises:
        ZeusError: The solver does not say its sigmas.
    """
    if program.sigmas is None:
        raise _refuse(program, "no sigmas")
    sigmas = np.array(program.sigmas)
    if find_parameterization(program) == "flow":
        return 1 - sigmas, sigmas
    scale = 1 / np.sqrt(1 + sigmas**2)
    return scale, sigmas * scale


def mix_output(parameterization: str, signal: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The weights of x0 and of noise in a denoiser's output, (N,) each."""
    one, zero = np.ones_like(signal), np.zeros_like(signal)
    return {"epsilon": (zero, one), "sample": (one, zero), "v": (-noise, signal), "flow": (-one, one)}[parameterization]


@cache
def load_kernels() -> tuple[Kernel, ...]:
    """The kernels that zeus-trt brings."""
    data = strict_json.decode(files(__package__).joinpath("prior.json").read_bytes(), _THING, advice=_ADVICE)
    json_file.check_format(data, _THING)
    read = json_file.read_array
    return tuple(strict_json.build(one, Kernel, _THING, advice=_ADVICE, read_other=read) for one in data["kernels"])


def make_prior_plan(program: SolverProgram, nfe: int, kernels: Sequence[Kernel] | None = None) -> Plan:
    """Finds the plan of ``nfe`` full steps, with its weights, that does best on the models of the prior.

    Plans are searched like those of a calibration, on all models at once: the geometric mean of their errors counts. A
    plan is found once for a solver and a budget. Where one of the models does worse with it than with evenly spread
    steps and the rule ``zeus``, these are the plan, and a warning says so.

    Args:
        program: The traced solver; its fingerprint names what is remembered.
        nfe: Full steps.
        kernels: The models; those that zeus-trt brings by default.

    Raises:
        ZeusError: An impossible number of full steps.
    """
    check_nfe(nfe, program.num_evaluations)
    with _lock:
        return _find(_Key(program.fingerprint, program), nfe, load_kernels() if kernels is None else tuple(kernels))


@dataclass(frozen=True)
class _Key:
    fingerprint: str
    program: SolverProgram

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


_lock = threading.Lock()  # a plan is searched once, not by every thread that asks


@lru_cache(64)
def _find(key: _Key, nfe: int, kernels: tuple[Kernel, ...]) -> Plan:
    program = key.program
    count = program.num_evaluations
    if nfe == count:
        return Plan("F" * count)
    plain = Plan.spread(count, nfe)
    try:
        laid = [kernel.lay_on(program) for kernel in kernels]
    except ZeusError as error:
        logger.warning("no prior: %s The plan is evenly spread, with the rule zeus", error)
        return plain
    found = _search(program, laid, nfe)
    gains = [_measure(program, plain, *one) / max(_measure(program, found, *one), _LEAST_ERROR) for one in laid]
    if min(gains) < 1:
        name = kernels[gains.index(min(gains))].name
        logger.warning("no prior plan of %d calls: %s does worse with it; the plan is evenly spread", nfe, name)
        return plain
    return replace(found, source="prior")


def _search(program: SolverProgram, laid: Sequence[_Laid], nfe: int) -> Plan:
    line = replace(Plan.spread(program.num_evaluations, nfe), predictor=Predictor.parse("lagrange-2"))
    grams, feedbacks = [], []
    for outputs, feedback in laid:
        for share in FEEDBACK:
            gram = outputs @ outputs.T / _measure(program, line, outputs, share * feedback)
            grams.append(gram + ROUGHNESS**2 * np.diag(np.diag(gram)))
            feedbacks.append(share * feedback)
    surrogate = Surrogate(program, np.array(grams), np.array(feedbacks), _ORDER)
    starts = make_starts(program.num_evaluations, nfe, 0, 0)
    _, best = min((descend(surrogate, start, _REACH) for start in starts), key=lambda one: one[0])
    if program.num_evaluations <= _WIDE:
        _, best = descend(surrogate, best)
    return surrogate.fit(best[None]).plan(0)


def _measure(program: SolverProgram, plan: Plan, outputs: np.ndarray, feedback: np.ndarray) -> float:
    """Mean squared error of the final latents, of a model with these outputs."""
    return float(np.square(weigh_error(program, list_rows(program, plan), feedback) @ outputs).sum())


def _round(values: np.ndarray) -> Any:
    return np.vectorize(lambda value: float(f"{value:.4g}"))(values).tolist()


def _refuse(program: SolverProgram, found: str) -> ZeusError:
    return ZeusError(
        f"prior: got {program.scheduler} with {found}; expected a solver of epsilon, v, sample or flow that knows its "
        "sigmas. Calibrate a plan."
    )
