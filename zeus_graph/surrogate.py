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
        self._psi = np.ascontiguousarray(np.hstack(factors))
        widths = [factor.shape[1] for factor in factors]
        widths[-1] += 0 if noise is None else size
        self._models = np.repeat(np.eye(len(widths)), widths, axis=0)  # (rank, M): which dimension belongs to which
        feedback = (self._models @ feedback.reshape(-1, size)).T
        if noise is not None:  # the error of every step gets a dimension
            self._errors = np.hstack([np.zeros_like(self._psi), np.diag(np.sqrt(noise))])
            self._psi = np.hstack([self._psi, np.zeros((len(noise), len(noise)))])
        self._program, self._feedback, self._order = program, feedback, order
        self._all = (self, *others)
        # Rows: the newest output, its first difference, its second, ...
        self._differences = np.array([[(-1) ** k * comb(n, k) for k in range(order)] for n in range(order)], float)

    def fit(self, full: np.ndarray, quantized: np.ndarray | None = None) -> Fit:
        """Fits predictors to plans, and scores them.

        Args:
            full: (plans, N) bool: which evaluations are full; the first two and the last must be.
            quantized: (plans, N) bool: which of these the quantized engine runs; none by default.
        """
        count, steps = full.shape
        quantized = np.zeros(full.shape, bool) if quantized is None else quantized
        runs = [_Run(one, count) for one in self._all]
        recent, known = np.zeros((count, self._order), int), np.zeros(count, int)
        sources, weights = np.zeros((count, steps, self._order), int), np.zeros((count, steps, self._order))
        for step in range(steps):
            outputs = [run.respond(step) for run in runs]
            skipped, ran = np.flatnonzero(~full[:, step]), np.flatnonzero(full[:, step])
            if skipped.size:
                past = recent[skipped]
                features = [run.used[skipped[:, None], past] for run in runs]
                targets = [run.aim(step, skipped) for run in runs]
                fitted = self._fit_step(
                    step, past, known[skipped], np.concatenate(features, -1), np.concatenate(targets, -1)
                )
                for output, feature in zip(outputs, features, strict=True):
                    output[skipped] = (fitted[:, None] @ feature)[:, 0]
                sources[skipped, step], weights[skipped, step] = past, fitted
            if (coarse := np.flatnonzero(quantized[:, step])).size:
                outputs[0][coarse] += self._errors[step]
            recent[ran, 1:] = recent[ran, :-1]
            recent[ran, 0] = step
            known[ran] += 1
            for run, output in zip(runs, outputs, strict=True):
                run.advance(step, output)
        errors = np.hstack([np.square(run.moved[:, 0]) @ run.surrogate._models for run in runs])
        mean = errors[:, 0] if errors.shape[1] == 1 else np.exp(np.log(np.maximum(errors, _LEAST)).mean(axis=1))
        return Fit(full, quantized, sources, weights, mean)

    def _fit_step(
        self, step: int, past: np.ndarray, known: np.ndarray, features: np.ndarray, target: np.ndarray
    ) -> np.ndarray:
        slope = (step - past[:, 0]) / (past[:, 0] - past[:, 1])
        line = np.zeros(past.shape)
        line[:, 0], line[:, 1] = 1 + slope, -slope
        exists = np.arange(self._order) < known[:, None]
        differences = (self._differences @ features) * exists[:, :, None]
        missing = target - (line[:, None] @ features)[:, 0]
        products = differences @ differences.swapaxes(1, 2)
        squares = np.einsum("pkk->pk", products)
        products = products + np.eye(self._order) * np.where(squares > 0, _RIDGE * squares, 1.0)[:, None]
        corrections = np.linalg.solve(products, differences @ missing[:, :, None])[..., 0]
        return line + corrections @ self._differences


class _Run:
    """Runs of as many plans, by one solver."""

    def __init__(self, surrogate: Surrogate, count: int):
        self.surrogate = surrogate
        size, rank = surrogate._psi.shape
        self.used = np.zeros((count, size, rank))
        self.moved = np.zeros((count, 1, rank))  # of the solver's state, against the recorded run

    def respond(self, step: int) -> np.ndarray:
        """(plans, rank): the outputs of a full step."""
        one = self.surrogate
        return one._psi[step] + one._feedback[step] * (one._program.input_rows[step] @ self.moved)

    def aim(self, step: int, some: np.ndarray) -> np.ndarray:
        """(some plans, rank): the outputs that bring the sample after the step back to the recorded one."""
        matrix, target = self.surrogate._program.matrices[step], self.surrogate._psi[step]
        if matrix[0, -1]:  # some solvers put an output into their history only
            return target - (matrix[0, :-1] @ self.moved[some]) / matrix[0, -1]
        return np.broadcast_to(target, (some.size, target.size))

    def advance(self, step: int, output: np.ndarray) -> None:
        """Goes on with these outputs."""
        self.used[:, step] = output
        change = (output - self.surrogate._psi[step])[:, None]
        self.moved = self.surrogate._program.matrices[step] @ np.concatenate([self.moved, change], axis=1)


def _factor(gram: np.ndarray) -> np.ndarray:
    """(N, rank): vectors with these inner products."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > values[-1] * _RANK
    return vectors[:, kept] * np.sqrt(values[kept])


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
