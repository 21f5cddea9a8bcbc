"""The best plan for a model, a solver and a budget."""

from collections.abc import Sequence
from dataclasses import dataclass

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.gram import Gram
from zeus_trt.calibration.search import check_nfe, list_uniform, search
from zeus_trt.calibration.surrogate import predict_psnr
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.workload import Workload
from zeus_trt.zeus_graph import Plan, Predictor, SolverProgram
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan, Measured

_CANDIDATES = 6  # of the search that are run, at most
_UNIFORM = 2  # uniform plans that are measured on the held-out samples, at most
_CLOSE_DB = 1.0  # the second of them, where validation leaves it so near the first

_Choice = tuple[Plan, str | Predictor]


@dataclass(frozen=True)
class Samples:
    """Which samples serve what, by their numbers, one after the other.

    Args:
        trajectories: How many are recorded.
        validation: How many the candidates are run on.
        held_out: How many the winner is measured on, which chose nothing.
    """

    trajectories: int = 16
    validation: int = 16
    held_out: int = 32

    def __post_init__(self) -> None:
        if min(self.trajectories, self.validation, self.held_out) < 1:
            raise ZeusError(f"samples: got {self}; expected one at least of each. Give more.")

    @property
    def ranges(self) -> dict[str, range]:
        """The numbers of each use."""
        first, second = self.trajectories, self.trajectories + self.validation
        return {
            "trajectories": range(first),
            "validation": range(first, second),
            "held_out": range(second, second + self.held_out),
        }


def calibrate(
    workload: Workload,
    gram: Gram,
    bench: Bench,
    nfe: int,
    *,
    samples: Samples | None = None,
    max_calls: int | None = None,
    seed: int = 0,
) -> CalibratedPlan:
    """Searches on the recorded trajectories, runs the best candidates, and measures the winner.

    Two thirds of the candidates are dropped after half of the validation samples. The uniform plans of as many full
    steps go the same way, and the better one on the held-out samples is kept.

    Args:
        workload: What is sampled.
        gram: Its recorded trajectories.
        bench: What measures; full runs that it has made already are not made again.
        nfe: Full steps.
        samples: Which samples serve what; 16, 16 and 32 by default.
        max_calls: The most denoiser evaluations that measuring may take, each sample's counted: fewer candidates are
            run where it is small. Full runs are counted too.
        seed: Of the search.

    Raises:
        ZeusError: An impossible budget.
    """
    samples = samples or Samples()
    num_steps, solver = int(gram.tag["num_steps"]), str(gram.tag["solver"])
    program, numbers = workload.program(num_steps, solver), samples.ranges
    check_nfe(nfe, program.num_evaluations)
    uniform = list_uniform(program.num_evaluations, nfe)
    affordable = _count_affordable(program, nfe, len(uniform), samples, max_calls)
    before = bench.calls
    found = search(program, gram, nfe, seed=seed)[:affordable]
    winner = _screen(bench, [(one.plan, one.predictor) for one in found], numbers["validation"])[0]
    kept = _screen(bench, uniform, numbers["validation"])[:_UNIFORM]
    first, *second = (bench.measure(*choice, numbers["validation"]) for choice in kept)
    kept = kept[:1] if second and second[0] < first - _CLOSE_DB else kept
    measured = [_measure(bench, choice, numbers["held_out"]) for choice in (winner, *kept)]
    calibrated, *others = measured
    others.sort(key=lambda one: -one.psnr_db)
    better = calibrated.psnr_db > others[0].psnr_db
    chosen = calibrated if better else others[0]
    return CalibratedPlan(
        chosen=chosen,
        calibrated=better,
        predicted_db=predict_psnr(program, gram, chosen.plan, chosen.predictor),
        uniform=tuple(others),
        num_steps=num_steps,
        solver=solver,
        fingerprint=program.fingerprint,
        backend=str(gram.tag["backend"]),
        workload=workload.describe(),
        numbers={use: (one.start, len(one)) for use, one in numbers.items()},
        calls={"recording": gram.calls, "measuring": bench.calls - before},
    )


def _screen(bench: Bench, choices: Sequence[_Choice], numbers: range) -> list[_Choice]:
    """The choices that are left, best first."""

    def rank(some: Sequence[_Choice], part: range) -> list[_Choice]:
        return sorted(some, key=lambda choice: -bench.measure(choice[0], choice[1], part))

    half = numbers[: -(-len(numbers) // 2)]
    ranked = rank(choices, half) if len(choices) > 2 else list(choices)
    return rank(ranked[: max(2, len(ranked) // 3)], numbers)


def _measure(bench: Bench, choice: _Choice, numbers: range) -> Measured:
    plan, predictor = choice
    return Measured(plan, Predictor.parse(predictor), bench.measure(plan, predictor, numbers))


def _count_affordable(
    program: SolverProgram, nfe: int, num_uniform: int, samples: Samples, max_calls: int | None
) -> int:
    """How many candidates ``max_calls`` allows to run."""
    if max_calls is None:
        return _CANDIDATES
    references = program.num_evaluations * (samples.validation + samples.held_out)
    held_out = nfe * samples.held_out * (1 + min(num_uniform, _UNIFORM))
    fixed = references + held_out + nfe * samples.validation * num_uniform
    count = (max_calls - fixed) // (nfe * samples.validation)
    if count < 1:
        raise ZeusError(
            f"max_calls: got {max_calls}; expected at least {fixed + nfe * samples.validation} for {nfe} full steps. "
            "Allow more, or give fewer samples."
        )
    return min(count, _CANDIDATES)
