"""Plans of two engines beside plans of one, at equal cost.

    python benchmarks/mixed_plans.py BUNDLE... --cost 12 --cost 18

Every bundle has class labels and a quantized graph (``zeus-trt quantize``). A call of that graph counts
``--quantized-cost`` calls of the float graph: the table is about quality at a given cost, and measures no time. At each
cost the best plan of F, Q, X and R, the best calibrated plan of F alone, the best of Q alone and the best uniform plan
of F are chosen on validation samples and measured on held-out ones, in PSNR to the full float run. The last line is one
JSON object.
"""

import json
from collections.abc import Sequence
from math import floor
from pathlib import Path

import click
import numpy as np

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.calibrate import Samples
from zeus_trt.calibration.mixed_search import search_mixed
from zeus_trt.calibration.record import record
from zeus_trt.calibration.search import ORDERS, list_uniform, search, weigh_trajectories
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.evaluation.workload import SessionWorkload, make_full_setting
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle
from zeus_trt.zeus_graph import Plan, SolverProgram
from zeus_trt.zeus_graph.surrogate import Surrogate

CANDIDATES = 4


def fit_quantized(program: SolverProgram, stats: TrajectoryStats, plans: Sequence[Plan]) -> list[Plan]:
    """The plans with every full step quantized, their weights fitted to that."""
    found = []
    for order in ORDERS:
        gram = weigh_trajectories(program, stats, plans[0].nfe)
        surrogate = Surrogate(program, gram, stats.feedback, order, stats.noise.mean(0))
        for plan in plans:
            full = np.array([[plan.is_full(step) for step in range(len(plan))]])
            found.append(surrogate.fit(full, full).plan(0))
    return found


def list_candidates(program: SolverProgram, stats: TrajectoryStats, cost: float, price: float) -> dict[str, list[Plan]]:
    """Kind of plan -> the candidates of that cost."""
    count = program.num_evaluations
    calls = min(count, floor(cost / price + 1e-9))
    coarse = [Plan("Q" * count)]
    if calls < count:
        coarse = fit_quantized(program, stats, search(program, stats, calls)[: CANDIDATES // 2])
    return {
        "F, Q, X, R": list(search_mixed(program, stats, cost, price)),
        "F, X, R": list(search(program, stats, floor(cost))),
        "Q, X, R": coarse,
        "uniform F, X, R": list(list_uniform(count, floor(cost))),
    }


def run_model(bundle: Path, costs: Sequence[float], price: float, samples: Samples) -> list[dict]:
    """The rows of one model."""
    workload = SessionWorkload(Bundle.open(bundle), guidance_scale=2.0)
    setting = make_full_setting(workload)
    program, numbers = workload.program(setting.num_steps), samples.ranges
    stats = record(workload, setting, numbers["trajectories"], quantized=True)
    bench, rows = Bench(workload, setting), []
    for cost in costs:
        row: dict = {"model": bundle.name, "cost": cost}
        for kind, plans in list_candidates(program, stats, cost, price).items():
            best = max(plans[:CANDIDATES], key=lambda plan: bench.measure(plan, numbers["validation"]))
            row[kind] = {
                "psnr_db": round(bench.measure(best, numbers["held_out"]), 2),
                "cost": round(best.cost(price), 2),
                "plan": str(best),
            }
            click.echo(f"{bundle.name} cost {cost:g} {kind}: {row[kind]}", err=True)
        others = max(row[kind]["psnr_db"] for kind in ("F, X, R", "Q, X, R"))
        rows.append({**row, "gain_db": round(row["F, Q, X, R"]["psnr_db"] - others, 2)})
    return rows


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--cost", "costs", multiple=True, type=float, default=(12.0, 18.0), show_default=True)
@click.option(
    "--quantized-cost", default=0.55, show_default=True, help="A quantized call, in calls of the float graph."
)
@click.option("--held-out", default=64, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(
    bundles: tuple[Path, ...], costs: tuple[float, ...], quantized_cost: float, held_out: int, output: Path | None
) -> None:
    samples = Samples(16, held_out=held_out)
    rows = [row for bundle in bundles for row in run_model(bundle, costs, quantized_cost, samples)]
    head = {"benchmark": "mixed_plans", "guidance_scale": 2.0, "quantized_cost": quantized_cost, "held_out": held_out}
    result = {**head, "machine": describe_machine(), "rows": rows}
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
