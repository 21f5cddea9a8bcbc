"""Plans calibrated at one guidance or over a range, for the mean of the samples or their worst tenth.

    python benchmarks/robust.py --cache DIR

The flow models of the digits are exported; N = 50, the checkpoints' own solver. 16 trajectories with probes are
searched and 16 samples choose, as in a calibration without the prior and without plans of fewer steps. 16 held-out
samples measure each plan at four guidance scales; the worst tenth is that of all 64 runs. Finished cells stay in the
cache. The last line is one JSON object.
"""

import json
from functools import cache
from pathlib import Path

import click
import torch

from zeus_trt.calibration.bench import Bench
from zeus_trt.calibration.calibrate import CANDIDATES, Samples, Task, screen
from zeus_trt.calibration.objective import average
from zeus_trt.calibration.search import search
from zeus_trt.evaluation.guidance_range import Scale
from zeus_trt.evaluation.workload import SessionWorkload, make_full_setting
from zeus_trt.export import export_model
from zeus_trt.machine import describe_machine
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import OBJECTIVES, WORST_DECILE

MODELS = ("unet-flow", "dit-flow")
STEPS, BUDGETS = 50, (22, 15)
MADE: dict[str, Scale] = {"2": 2.0, "1.5:5": (1.5, 5.0)}
SCALES = (1.5, 2.0, 3.0, 5.0)
SAMPLES, HELD_OUT = Samples(16, 16, 16), range(32, 48)
ROOT = Path(__file__).parents[1]


class Model:
    """A bundle that runs at any guidance."""

    def __init__(self, name: str, folder: Path, threads: int):
        self.name, self._folder = name, folder
        path = folder / f"bundle-{name}"
        if not path.exists():
            export_model(ROOT / "examples" / "models" / f"digits-{name}", path)
        self._bundle = Bundle.open(path)
        self._engine = OnnxRuntimeEngine(self._bundle.graph(), num_threads=threads)
        self._open_task, self._bench = cache(self._make_task), cache(self._make_bench)

    def _open(self, scale: Scale) -> SessionWorkload:
        return SessionWorkload(self._bundle, guidance_scale=scale, engines={"onnxruntime": self._engine})

    def _make_bench(self, scale: float) -> Bench:
        workload = self._open(scale)
        return Bench(workload, make_full_setting(workload, STEPS))

    def _make_task(self, made: str, objective: str) -> tuple[Task, Bench]:
        workload = self._open(MADE[made])
        file = self._folder / f"guided-{self.name}-{made.replace(':', '-')}.npz"
        batch = 8 if made == "2" else 1
        task = Task(
            workload, make_full_setting(workload, STEPS), SAMPLES, batch, file, kernels=(), objective=objective
        )  # fmt: skip
        return task, task.bench()

    def find(self, nfe: int, made: str, objective: str) -> Plan:
        """The plan of a calibration."""
        task, bench = self._open_task(made, objective)
        (program,), (stats,) = task.programs.values(), task.record()
        found = search(program, stats, nfe, objective=objective)[:CANDIDATES]
        return screen(bench, found, SAMPLES.ranges["validation"])[0]

    def run(self, nfe: int, made: str, objective: str) -> dict:
        """A row of the table."""
        file = self._folder / f"robust-{self.name}-{nfe}-{made.replace(':', '-')}-{objective}.json"
        if not file.exists():
            plan = self.find(nfe, made, objective)
            found = {scale: self._bench(scale).list_psnr(plan, HELD_OUT) for scale in SCALES}
            row = {
                "model": self.name, "nfe": nfe, "guidance": made, "objective": objective, "plan": str(plan),
                "psnr_db": {f"{scale:g}": round(average(values), 2) for scale, values in found.items()},
                "worst_db": round(average([one for values in found.values() for one in values], WORST_DECILE), 2),
                "worst_at_2_db": round(average(found[2.0], WORST_DECILE), 2),
            }  # fmt: skip
            file.write_text(json.dumps(row), encoding="utf-8")
            click.echo(json.dumps(row), err=True)
        return json.loads(file.read_text(encoding="utf-8"))


@click.command()
@click.option("--cache", "folder", type=click.Path(path_type=Path), required=True, help="Folder of finished cells.")
@click.option("--model", "models", type=click.Choice(MODELS), multiple=True, default=MODELS, help="All by default.")
@click.option("--threads", default=1, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(folder: Path, models: tuple[str, ...], threads: int, output: Path | None) -> None:
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in models:
        model = Model(name, folder, threads)
        rows += [model.run(nfe, made, goal) for goal in OBJECTIVES for made in MADE for nfe in BUDGETS]
    head = {"benchmark": "robust", "num_steps": STEPS, "held_out": len(HELD_OUT), "threads": threads}
    result = {**head, "machine": describe_machine(), "rows": rows}
    if output:
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    click.echo(json.dumps(result))


if __name__ == "__main__":
    main()
