"""Plans without calibration: what the outputs of several models have in common serves one that was never recorded."""

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files

import numpy as np

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import json_file, prior_cache
from zeus_trt.zeus_graph.kernel import Kernel, Laid
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.plan_search import check_nfe, descend, make_starts
from zeus_trt.zeus_graph.predictor import Predictor
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.surrogate import Surrogate, list_rows, weigh_error

logger = logging.getLogger(__name__)

RESPONSES = (-0.2, 0.5)
"""How x0 of a sample may respond to errors, beside what was measured: some samples damp them, some amplify them."""

MARGIN = 2.0
"""dB: so much better than ``zeus`` a plan must be foreseen to be for each model that is left out."""

_ORDER = 3  # past full outputs that a skipped step reads
_REACH = 6  # of the first moves: how far a full step is shifted
_WIDE = 64  # evaluations, up to which it may then go anywhere
_LEAST_ERROR = 1e-300
_THING = "prior"
_ADVICE = "Install zeus-trt again."


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
    plan is searched once for a solver and a budget, and kept for other processes (``find_cache_folder``). Where
    ``foresee`` says less than ``MARGIN`` for a model, the plan is evenly spread steps with the rule ``zeus``, and a
    warning says so. Otherwise the log says what is foreseen.

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
        gains, plan = _recall_or_search(program, nfe, kernels)
    except ZeusError as error:
        logger.warning("no prior: %s The plan is evenly spread, with the rule zeus", error)
        return plain
    least = min(gains, key=gains.__getitem__, default=None)
    if least is None or gains[least] < MARGIN:
        reason = "no model of the prior was recorded at its noise levels"
        if least is not None:
            reason = f"for {least}, left out of the prior, its gain over zeus is foreseen as {gains[least]:.1f} dB"
        logger.warning(
            "no prior plan of %d calls: %s; the plan is evenly spread, with the rule zeus", nfe, reason
        )  # fmt: skip
        return plain
    logger.info(
        "prior plan of %d calls: with each model left out in turn, its gain over zeus is foreseen as %.1f to %.1f dB",
        nfe, gains[least], max(gains.values())
    )  # fmt: skip
    return plan


def _recall_or_search(program: SolverProgram, nfe: int, kernels: tuple[Kernel, ...]) -> prior_cache.Found:
    """What is foreseen for each model, and the plan if that is enough, from an earlier process if there was one."""
    place = prior_cache.find_place(program, nfe, kernels)
    if found := prior_cache.recall(place):
        return found
    gains, plan = foresee(program, nfe, kernels), Plan.spread(program.num_evaluations, nfe)
    if min(gains.values(), default=-math.inf) >= MARGIN:
        plan = search(program, nfe, kernels)
    prior_cache.keep(place, (gains, plan))
    return gains, plan


def foresee(program: SolverProgram, nfe: int, kernels: Sequence[Kernel]) -> dict[str, float]:
    """By how many dB a plan is better than evenly spread steps with the rule ``zeus``, for each model by name.

    The plan of each is searched on the other models, and measured on that one. Models that were recorded at fewer noise
    levels than the solver has are left out of the answer.
    """
    plain, gains = Plan.spread(program.num_evaluations, nfe), {}
    for kernel in (one for one in kernels if one.covers(program)):
        found = search(program, nfe, [other for other in kernels if other is not kernel] or [kernel])
        errors = [max(foresee_error(program, plan, kernel), _LEAST_ERROR) for plan in (plain, found)]
        gains[kernel.name] = float(10 * np.log10(errors[0] / errors[1]))
    return gains


def foresee_error(program: SolverProgram, plan: Plan, kernel: Kernel) -> float:
    """Mean squared error of the final latents of this model, in the unit of its outputs."""
    return _measure(program, plan, kernel.lay_on(program))


def search(program: SolverProgram, nfe: int, kernels: Sequence[Kernel]) -> Plan:
    """The plan that does best on these models, whatever it is foreseen to gain; arguments as ``make_prior_plan``."""
    return _search(_Key(program.fingerprint, program), nfe, tuple(kernels))


@lru_cache(64)
def _search(key: _Key, nfe: int, kernels: tuple[Kernel, ...]) -> Plan:
    program = key.program
    line = replace(Plan.spread(program.num_evaluations, nfe), predictor=Predictor.parse("lagrange-2"))
    laid = [kernel.lay_on(program, shift) for kernel in kernels for shift in RESPONSES]
    roughness = np.max([one.roughness for one in laid], axis=0)
    laid = [one._replace(roughness=roughness) for one in laid]
    grams = [
        (one.outputs @ one.outputs.T + np.diag(roughness**2)) / max(_measure(program, line, one), _LEAST_ERROR)
        for one in laid
    ]
    surrogate = Surrogate(program, np.array(grams), np.array([one.feedback for one in laid]), _ORDER)
    starts = make_starts(program.num_evaluations, nfe, 0, 0)
    _, best = min((descend(surrogate, start, _REACH) for start in starts), key=lambda one: one[0])
    if program.num_evaluations <= _WIDE:
        _, best = descend(surrogate, best)
    return replace(surrogate.fit(best[None]).plan(0), source="prior")


def _measure(program: SolverProgram, plan: Plan, laid: Laid) -> float:
    """Mean squared error of the final latents, of a model with these outputs."""
    weights = weigh_error(program, list_rows(program, plan), laid.feedback)
    return float(np.square(weights @ laid.outputs).sum() + np.square(weights * laid.roughness).sum())
