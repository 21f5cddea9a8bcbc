"""The whole run in miniature: plans are scored, and predictors fitted to them, without the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb

import numpy as np

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.noise_grid import measure_program
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.predictor import Predictor, Row
from zeus_trt.zeus_graph.row_table import step_of
from zeus_trt.zeus_graph.solver_program import SolverProgram

_RIDGE = 1e-3  # of each difference's own square
_RANK = 1e-10  # directions of less energy than this share of the largest are left out
_LEAST = 1e-300


@dataclass(frozen=True)
class Fit:
    """Plans with fitted predictors.

    Args:
        full: (plans, N) bool: which evaluations are full.
        quantized: (plans, N) bool: which of these are run by the quantized engine.
        sources: (plans, N, order): the past full steps that a skipped step reads, newest first.
        weights: (plans, N, order): their weights; zero at full steps.
        errors: (plans,): squared error of the final latents, in the surrogate's unit; of several models the geometric
            mean.
    """

    full: np.ndarray
    quantized: np.ndarray
    sources: np.ndarray
    weights: np.ndarray
    errors: np.ndarray

    def plan(self, place: int) -> Plan:
        """One of the plans, with its table."""
        pairs = enumerate(zip(self.sources[place], self.weights[place], strict=True))
        rows: dict[int, Row] = {
            step: {int(k): float(w) for k, w in zip(sources, weights, strict=True) if w}
            for step, (sources, weights) in pairs
            if weights.any()
        }
        full_steps = [int(step) for step in np.flatnonzero(self.full[place])]
        plan = Plan.from_full_steps(self.full.shape[1], full_steps)
        plan = plan.with_quantized(map(int, np.flatnonzero(self.quantized[place])))
        return replace(plan, predictor=Predictor.from_table(rows))


class Surrogate:
    """Outputs as a few numbers each, with the inner products of the recorded ones, and their feedback.

    A run with skipped steps is simulated in full: a full step at an input that has moved by d gives the recorded
    output plus ``feedback`` times d, and if it is quantized an error that is like no other; a skipped step gives a
    weighted sum of the last full outputs. The weights begin as the line through the last two, and are corrected, step
    by step, by the ridge regression that brings the sample after the step nearest to the recorded one: whatever error
    has come before is part of what they correct, so that they shrink where they would amplify a quantizer's errors.

    Args:
        program: The traced solver.
        gram: (N, N): inner products of the outputs; or (M, N, N), those of M models.
        feedback: (N,), or (M, N): by how much an output moves when its model input moves by one.
        order: How many past full outputs a skipped step reads.
        noise: (N,): mean square of the quantized engine's error, for plans with quantized steps.
        others: Surrogates of further solvers, of as many evaluations and the same order: the weights are fitted to all
            at once. Steps of the quantized engine are for one alone.
    """

    def __init__(
        self,
        program: SolverProgram,
        gram: np.ndarray,
        feedback: np.ndarray,
        order: int,
        noise: np.ndarray | None = None,
        others: Sequence["Surrogate"] = (),
    ):
        size = program.num_evaluations
        factors = [_factor(one) for one in gram.reshape(-1, size, size)]
        widths = [factor.shape[1] for factor in factors]
        psi = np.hstack(factors)
        errors = np.zeros_like(psi)
        if noise is not None:  # the error of every step gets a dimension
            widths[-1] += size
            psi = np.hstack([psi, np.zeros((size, size))])
            errors = np.hstack([errors, np.diag(np.sqrt(noise))])
        first = ((psi != 0) | (errors != 0)).argmax(axis=0)  # the step that begins to use a dimension
        order_of_use = np.argsort(first, kind="stable")
        self._ranks = np.searchsorted(first[order_of_use], np.arange(size), side="right")  # used up to each step
        self._psi, self._errors = psi[:, order_of_use], errors[:, order_of_use]
        self._models = np.repeat(np.eye(len(widths)), widths, axis=0)[order_of_use]  # (rank, M): whose dimension it is
        self._feedback = (self._models @ feedback.reshape(-1, size)).T
        self._program, self._order = program, order
        self._all = (self, *others)
        # Rows: the newest output, its first difference, its second, ...
        self._differences = np.array([[(-1) ** k * comb(n, k) for k in range(order)] for n in range(order)], float)

    def fit(self, full: np.ndarray, quantized: np.ndarray | None = None) -> Fit:
        """Fits predictors to plans, and scores them. Plans that begin alike are simulated once until they part.

        Args:
            full: (plans, N) bool: which evaluations are full; the first two and the last must be.
            quantized: (plans, N) bool: which of these the quantized engine runs; none by default.
        """
        quantized = np.zeros(full.shape, bool) if quantized is None else quantized
        places, parting, parents = _find_partings(full.astype(int) + quantized)
        ran, coarse = full[places], quantized[places]
        past = _list_past(ran, self._order)
        weights = np.zeros(past.shape)
        runs = [_Run(one, len(full)) for one in self._all]
        alive = 0
        for step in range(full.shape[1]):
            new = slice(alive, alive := int(np.searchsorted(parting, step, side="right")))
            for array in (weights, *(array for run in runs for array in (run.moved, run.differences))):
                array[new] = array[parents[new]]
            outputs = [np.empty((alive, run.surrogate._ranks[step])) for run in runs]
            exact, skipped = np.flatnonzero(ran[:alive, step]), np.flatnonzero(~ran[:alive, step])
            if skipped.size:
                fitted = self._fit_step(step, past[skipped, step], skipped, runs)
                weights[skipped, step] = fitted @ self._differences
                for run, output in zip(runs, outputs, strict=True):
                    output[skipped] = run.predict(step, skipped, fitted)
            for run, output in zip(runs, outputs, strict=True):
                output[exact] = run.respond(step, exact)
            outputs[0][coarse[:alive, step]] += self._errors[step, : self._ranks[step]]
            for run, output in zip(runs, outputs, strict=True):
                run.advance(step, output, exact)
        errors = np.hstack([np.square(run.moved[:, 0]) @ run.surrogate._models for run in runs])
        mean = errors[:, 0] if errors.shape[1] == 1 else np.exp(np.log(np.maximum(errors, _LEAST)).mean(axis=1))
        back = np.argsort(places)
        sources = np.where(ran[:, :, None], 0, np.maximum(past, 0))
        return Fit(full, quantized, sources[back], weights[back], mean[back])

    def _fit_step(self, step: int, past: np.ndarray, skipped: np.ndarray, runs: Sequence["_Run"]) -> np.ndarray:
        """(skipped plans, order): the weights of the newest output and its differences."""
        exists = past >= 0
        pairs = [run.measure(step, skipped) for run in runs]
        products, aimed = sum(one for one, _ in pairs), sum(one for _, one in pairs)
        line = np.zeros(past.shape)
        line[:, 0], line[:, 1] = 1, (step - past[:, 0]) / (past[:, 0] - past[:, 1])
        missing = (aimed - (products @ line[:, :, None])[..., 0]) * exists
        products *= exists[:, :, None] * exists[:, None]
        squares = np.einsum("pkk->pk", products)
        products = products + np.eye(self._order) * np.where(squares > 0, _RIDGE * squares, 1.0)[:, None]
        return line + np.linalg.solve(products, missing[:, :, None])[..., 0]


class _Run:
    """Runs of as many plans, by one solver."""

    def __init__(self, surrogate: Surrogate, count: int):
        self.surrogate = surrogate
        rank = surrogate._psi.shape[1]
        self.moved = np.zeros((count, surrogate._program.num_latents, rank))  # of the state, against the recorded run
        self.differences = np.zeros((count, surrogate._order, rank))  # newest full output, first difference, ...

    def respond(self, step: int, some: np.ndarray) -> np.ndarray:
        """(some plans, rank): the outputs of a full step."""
        one, rank = self.surrogate, self.surrogate._ranks[step]
        row = one._program.input_rows[step]
        moved = row @ self.moved[some, : row.size, :rank]
        return one._psi[step, :rank] + one._feedback[step, :rank] * moved

    def measure(self, step: int, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Products of the differences with each other, (some plans, order, order), and with the outputs that bring the
        sample after the step back to the recorded one, (some plans, order)."""
        matrix, rank = self.surrogate._program.matrices[step], self.surrogate._ranks[step]
        differences, target = self.differences[some, :, :rank], self.surrogate._psi[None, step, :rank]
        if matrix[0, -1]:  # some solvers put an output into their history only
            row = matrix[0, :-1] / matrix[0, -1]
            target = target - row @ self.moved[some, : row.size, :rank]
        products = np.einsum("pkr,plr->pkl", differences, differences)  # faster than small products by BLAS
        return products, (differences @ target[:, :, None])[..., 0]

    def predict(self, step: int, some: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(some plans, rank): weighted sums of the differences."""
        return (weights[:, None] @ self.differences[some, :, : self.surrogate._ranks[step]])[:, 0]

    def advance(self, step: int, output: np.ndarray, ran: np.ndarray) -> None:
        """Goes on with these outputs, of which some are those of full steps."""
        matrix, (count, rank) = self.surrogate._program.matrices[step], output.shape
        change = (output - self.surrogate._psi[step, :rank])[:, None]
        state = np.concatenate([self.moved[:count, : matrix.shape[1] - 1, :rank], change], axis=1)
        self.moved[:count, : len(matrix), :rank] = matrix @ state
        fresh = output[ran]
        for order in range(self.surrogate._order):
            old = self.differences[ran, order, :rank]
            self.differences[ran, order, :rank] = fresh
            fresh = fresh - old


def _find_partings(letters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An order of plans (plans, N), the step at which each parts from one before it, and which of the order that is.

    A plan that is the same as another parts at the last step.
    """
    by_letters = np.lexsort(letters.T[::-1])
    sorted_ = letters[by_letters]
    differs = sorted_[1:] != sorted_[:-1]
    differs[:, -1] = True
    parting = np.concatenate([[0], differs.argmax(axis=1)])
    parents, branch = np.zeros(len(letters), int), [0]
    for plan in range(1, len(letters)):
        while len(branch) > 1 and parting[branch[-1]] >= parting[plan]:
            branch.pop()
        parents[plan] = branch[-1]
        branch.append(plan)
    by_step = np.argsort(parting, kind="stable")
    return by_letters[by_step], parting[by_step], np.argsort(by_step)[parents[by_step]]


def _list_past(full: np.ndarray, order: int) -> np.ndarray:
    """(plans, N, order): the last full steps before each step. The newest is first; -1 fills what is missing."""
    count, steps = full.shape
    newest = np.maximum.accumulate(np.where(full, np.arange(steps), -1), axis=1)
    before = np.concatenate([np.full((count, 1), -1), newest], axis=1)  # of step i at i; of -1, which is nothing, at 0
    found = [before[:, :-1]]
    for _ in range(1, order):
        found.append(np.where(found[-1] < 0, -1, np.take_along_axis(before, np.maximum(found[-1], 0), axis=1)))
    return np.stack(found, axis=-1)


def _factor(gram: np.ndarray) -> np.ndarray:
    """(N, rank): vectors with these inner products; the first has one number that is not zero, the second two, ..."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > values[-1] * _RANK
    return np.linalg.qr((vectors[:, kept] * np.sqrt(values[kept])).T)[1].T


def weigh_error(
    program: SolverProgram, rows: Sequence[Row | None], feedback: np.ndarray, quantized: Sequence[int] = ()
) -> np.ndarray:
    """(N,): the weight of every recorded output in the final error of a run with these rows.

    Without feedback it is ``w P - w``: w the outputs' weights in the final latents, P the predictor's matrix.
    (2 N,) with quantized steps: after them the weights of their errors.
    """
    size = program.num_evaluations
    identity = np.eye(size, 2 * size if quantized else size)
    used: list[np.ndarray] = []
    moved = np.zeros((1, identity.shape[1]))
    pairs = zip(program.input_rows, program.matrices, rows, strict=True)
    for step, (input_row, matrix, row) in enumerate(pairs):
        if row is None:
            output = identity[step] + feedback[step] * (input_row @ moved)
        else:
            output = np.sum([weight * used[step_of(source)] for source, weight in row.items()], axis=0)
        if step in quantized:
            output = output + np.eye(1, 2 * size, size + step)[0]
        used.append(output)
        moved = matrix @ np.vstack([moved, output - identity[step]])
    return moved[0]


def list_rows(program: SolverProgram, plan: Plan) -> tuple[Row | None, ...]:
    """The rows of the plan's predictor on the solver's grid; raises ZeusError for one that reads samples."""
    if plan.rule.reads_samples:
        raise ZeusError(
            f"predictor {plan.rule}: got one that reads samples; expected one over outputs, all that is recorded. "
            "Measure it by a comparison."
        )
    return plan.rule.rows(plan, measure_program(plan.rule, program))
