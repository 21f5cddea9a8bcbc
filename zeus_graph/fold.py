"""Folding: solver and plan become one matrix per full step."""

import numpy as np

from zeus_trt.zeus_graph.noise_grid import measure_program
from zeus_trt.zeus_graph.plan import Plan
from zeus_trt.zeus_graph.predictor import Predictor, last_uses
from zeus_trt.zeus_graph.prune import prune
from zeus_trt.zeus_graph.row_table import Row, Sample, Source
from zeus_trt.zeus_graph.sampling_program import SamplingProgram
from zeus_trt.zeus_graph.solver_program import SolverProgram
from zeus_trt.zeus_graph.trace import UntraceableError

_MOST_KEPT = 64  # outputs; the memory of a program grows with the square


def fold(solver: SolverProgram, plan: Plan) -> SamplingProgram:
    """Multiplies the skipped steps into the full step before each of them.

    Args:
        solver: The traced solver.
        plan: One letter per evaluation of ``solver``, and the predictor.

    Returns:
        The program of the whole trajectory: as many entries as the plan has full steps.

    Raises:
        UntraceableError: The predictor's table reads so many outputs that the matrices are large; step mode serves it.
        ZeusError: The plan has another length than the solver, the predictor cannot
            serve the plan, or it measures in sigmas or noise that the solver does not know.
    """
    plan.check_length(solver.num_evaluations)
    steps = plan.full_steps
    rows = plan.rule.rows(plan, measure_program(plan.rule, solver))
    matrices = _blocks(solver, plan, rows)
    # A row over the solver's state, widened by zeros for the outputs that the state keeps besides.
    input_rows = [
        np.pad(solver.input_rows[step], (0, matrix.shape[1] - 1 - solver.input_rows[step].size))
        for step, matrix in zip(steps, matrices, strict=True)
    ]
    matrices, input_rows = prune(matrices, input_rows)
    with_inputs = [np.vstack([m, row @ m]) for m, row in zip(matrices, input_rows[1:], strict=False)]
    return SamplingProgram(
        steps=steps,
        timesteps=tuple(solver.timesteps[step] for step in steps),
        matrices=(*with_inputs, matrices[-1]),
        first_input=float(input_rows[0][0]),
        init_noise_sigma=solver.init_noise_sigma,
        plan=plan.steps,
        predictor=_write_predictor(plan, rows),
        solver=solver.fingerprint,
    )


def _write_predictor(plan: Plan, rows: tuple[Row | None, ...]) -> dict:
    """The predictor as JSON data; the rows of a rule from another package, which a reader may not have."""
    if plan.rule.rule is None:
        return plan.rule.to_json()
    return Predictor.from_table({step: row for step, row in enumerate(rows) if row}).to_json()


def _blocks(solver: SolverProgram, plan: Plan, rows: tuple[Row | None, ...]) -> list[np.ndarray]:
    """One matrix per full step over [solver state; kept outputs; model output], skipped steps multiplied in."""
    last_use = last_uses(rows)
    kept: list[Source] = []  # used outputs and samples that follow the solver's state
    blocks: list[np.ndarray] = []
    for step, (matrix, row) in enumerate(zip(solver.matrices, rows, strict=True)):
        size = matrix.shape[1] - 1
        inputs = np.eye(size + len(kept) + 1)  # state, what is kept, model output
        if row is not None:
            inputs = inputs[:-1, :-1]  # no model output at a skipped step
        known = {source: inputs[size + place] for place, source in enumerate(kept)} | {Sample(step): inputs[0]}
        output = inputs[-1] if row is None else np.sum([w * known[source] for source, w in row.items()], axis=0)
        known[step] = output
        kept = [source for source in known if last_use.get(source, -1) > step]
        if len(kept) > _MOST_KEPT:
            raise UntraceableError(
                f"predictor table: got rows that read {len(kept)} outputs and samples at step {step} or later; "
                f"expected {_MOST_KEPT} at most, to fold it. Run it in step mode."
            )
        update = np.vstack([matrix @ np.vstack([inputs[:size], output]), *(known[source] for source in kept)])
        if row is None:
            blocks.append(update)
        else:
            blocks[-1] = update @ blocks[-1]
    return blocks
