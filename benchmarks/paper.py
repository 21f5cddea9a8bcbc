"""The tables and figures of the ZEUS paper on a model: what it says, what is measured, and whether the two agree.

    python benchmarks/paper.py -o out/paper                                  all of them, on the digits models
    python benchmarks/paper.py memory few-steps -o out/paper --model DIR     some, on a bundle, a model or a pipeline

Writes a page per table or figure, paper.json, and a report of every table. It goes on where it stopped.
"""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from paper_prediction import NUM_STEPS, PredictionErrors, make_error_table, make_summary, measure_errors, plot_errors
from paper_tables import STUDIES, ErrorFigure, Finding, PaperTable

from zeus_trt import strict_json
from zeus_trt.comparing import open_compared
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.compare import compare
from zeus_trt.evaluation.comparison import Comparison
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.pipeline_workload import EAGER
from zeus_trt.evaluation.table import Table
from zeus_trt.evaluation.variants import make_variants
from zeus_trt.evaluation.workload import SessionWorkload
from zeus_trt.machine import describe_machine
from zeus_trt.zeus_graph import Predictor, choose_plan, fold

MODELS = Path(__file__).parents[1] / "examples" / "models"
DIGITS = tuple(MODELS / f"digits-{name}" for name in ("unet-flow", "unet-epsilon", "unet-v", "unet-x0", "dit-flow"))

_SHOWN = ("", "solver", "steps", "predictor", "NFE", "bound", "PSNR", "SSIM", "LPIPS", "FID", "PSNR to most steps")
_WORDS = {True: "agrees", False: "does not agree", None: "-"}


@dataclass(frozen=True)
class Outcome:
    """A table of one model.

    Args:
        table: Which.
        comparison: All rows.
        state: Row label -> latents that a skipped run keeps, where it runs as a program.
    """

    table: PaperTable
    comparison: Comparison
    state: Mapping[str, int]

    @property
    def model(self) -> str:
        """The model's name."""
        return self.comparison.settings["model"]

    @property
    def findings(self) -> list[Finding]:
        """What was measured of each claim, and whether they agree."""
        return self.table.judge(self.comparison.rows, self.state)

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON data."""
        return {"state_latents": dict(self.state), "comparison": self.comparison.to_json()}

    def to_markdown(self) -> str:
        """What was measured."""
        whole = self.comparison.table
        timed = self.table.grid.peers and self.comparison.settings["rounds"] > 1
        shown = {*_SHOWN, *(["speed-up"] if timed else [])}
        columns = [column for column in whole.columns if column.name in shown]
        rows = [f"{row.label}: {row.note}" for row in whole.rows if row.note]
        notes = "".join(f"\n{note}." for note in (*rows, *self.comparison.missing_metrics))
        return f"{Table(columns, whole.rows).to_markdown()}{notes}\n"


@dataclass(frozen=True)
class FigureOutcome:
    """The figure of one model."""

    table: ErrorFigure
    model: str
    errors: tuple[PredictionErrors, ...]

    @property
    def findings(self) -> list[Finding]:
        """What was measured of each claim, and whether they agree."""
        return self.table.judge(self.errors)

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON data."""
        return {"errors": [asdict(one) for one in self.errors]}

    def to_markdown(self) -> str:
        """What was measured."""
        return (
            f"![MSE by step]({self.model}/{self.table.name}/errors.png)\n\n{make_summary(self.errors).to_markdown()}\n"
            f"MSE by step:\n\n{make_error_table(self.errors).to_markdown()}"
        )


def run_table(
    table: PaperTable,
    model: str | Path,
    output: Path,
    options: MeasureOptions,
    *,
    on_run: Callable[[int], None] | None = None,
    **conditioning: Any,
) -> Outcome:
    """Runs a table on one model, and writes its report.

    Args:
        table: Which.
        model: A bundle, a model folder or a pipeline.
        output: Folder of the model's bundle, and of a folder with the report for each table.
        options: Images and rounds.
        on_run: As in ``compare``.
        **conditioning: ``guidance_scale``, ``seed`` and ``prompts`` as in ``open_model``.

    Raises:
        ZeusError: As ``open_compared`` and ``compare``.
    """
    backends = (EAGER,) if table.grid.peers else ("auto",)
    subject = open_compared(model, output, backends=backends, **conditioning)
    variants = make_variants(subject.workload, replace(table.grid, backends=subject.asked))
    comparison = compare(subject, variants, options, output=output / table.name, on_run=on_run)
    state = {}
    for variant in variants:
        setting = variant.setting
        if (
            not (variant.is_full or variant.peer)
            and setting.predictor == Predictor()
            and isinstance(subject.workload, SessionWorkload)
        ):
            program = subject.workload.program(setting.num_steps, setting.solver)
            state[variant.label] = fold(program, setting.plan).num_latents
    return Outcome(table, comparison, state)


def run_figure(
    figure: ErrorFigure, model: str | Path, output: Path, options: MeasureOptions, **conditioning: Any
) -> FigureOutcome:
    """Measures the errors of predictions by step on one model; as ``run_table``.

    Raises:
        ZeusError: As ``open_compared``; a model that is no bundle.
    """
    subject = open_compared(model, output, **conditioning)
    workload = subject.workload
    if not isinstance(workload, SessionWorkload):
        raise ZeusError(f"model: got the pipeline {model} for {figure.name}; expected a bundle. Export its denoiser.")
    folder = output / figure.name
    folder.mkdir(parents=True, exist_ok=True)
    errors = []
    for name in figure.predictors:
        for ratio in figure.ratios:
            plan = choose_plan(ratio=ratio, window=figure.window)(workload.count_evaluations(NUM_STEPS))
            meaning = {**workload.describe(), "plan": str(plan), "predictor": name, "num_images": options.num_images}
            file = folder / f"{name}-{ratio}.json"
            if (found := _load(file, meaning)) is None:
                found = measure_errors(workload, plan, name, options.num_images, ratio)
                file.write_text(json.dumps({"meaning": meaning, "errors": asdict(found)}), encoding="utf-8")
            errors.append(found)
    (folder / "errors.png").write_bytes(plot_errors(errors))
    return FigureOutcome(figure, subject.name, tuple(errors))


def _load(file: Path, meaning: Mapping[str, Any]) -> PredictionErrors | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        if data["meaning"] != json.loads(json.dumps(meaning)):
            return None
        return strict_json.build(data["errors"], PredictionErrors, "errors", advice="Delete the file.")
    except (OSError, ValueError, KeyError, TypeError, ZeusError):  # missing, or cut short
        return None


def write_page(outcomes: Sequence[Outcome | FigureOutcome], output: Path, command: str, num_images: int) -> dict:
    """Writes the page of one table or figure, and returns it as JSON data."""
    table = outcomes[0].table
    findings = [(one.model, finding) for one in outcomes for finding in one.findings]
    if isinstance(table, PaperTable) and table.across:
        rows = {one.model: one.comparison.rows for one in outcomes if isinstance(one, Outcome)}
        findings += [("all", finding) for finding in table.judge_across(rows)]
    verdicts = Table.of_texts(
        ("model", "the paper's claim, or our question", "the paper's numbers", "measured", "verdict"),
        [(model, one.claim, one.paper, one.measured, _WORDS[one.agrees]) for model, one in findings],
    )
    parts = [
        f"# {table.title}",
        f"Set up: {table.settings}. {num_images} images of every run; {_describe_place()}.",
        f"```sh\n{command}\n```",
        "## Verdict",
        verdicts.to_markdown(),
        "## Measured",
        *(f"### {one.model}\n\n{one.to_markdown()}" for one in outcomes),
    ]
    output.mkdir(parents=True, exist_ok=True)
    (output / f"{table.name}.md").write_text("\n\n".join(part.rstrip() for part in parts) + "\n", encoding="utf-8")
    return {
        "study": table.name,
        "command": command,
        "findings": [{"model": model, **asdict(finding)} for model, finding in findings],
        "models": {one.model: one.to_json() for one in outcomes},
    }


def list_models(table: PaperTable | ErrorFigure, chosen: Sequence[str | Path]) -> Sequence[str | Path]:
    """The models that a table is run on: all, those that it names, or else the first."""
    named = [model for model in chosen if Path(model).name in table.digits]
    return chosen if table.every_model else named or chosen[:1]


def _describe_place() -> str:
    return ", ".join(f"{name} {value}" for name, value in describe_machine().items())


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", type=click.Choice(list(STUDIES)))
@click.option("--model", "models", multiple=True, help="Bundle, model folder or pipeline; repeat for more.")
@click.option("--digits", is_flag=True, help="The five digits models; the default without --model.")
@click.option("--prompts", type=click.Path(path_type=Path, exists=True), help="File with a prompt per line.")
@click.option("--num-images", type=click.IntRange(1), default=8, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Timed runs of each row.")
@click.option("--guidance-scale", type=float, help="1 turns it off.  [default: 2 of class labels]")
@click.option("--seed", default=0, show_default=True, help="Image k has the noise of seed + k.")
@click.option("-o", "--output", default="out/paper", show_default=True, type=click.Path(path_type=Path))
def main(
    tables: tuple[str, ...],
    models: tuple[str, ...],
    digits: bool,
    num_images: int,
    rounds: int,
    output: Path,
    **conditioning: Any,
) -> None:
    """Repeat tables of the paper on models: all by default. The first model runs each of them, the others some."""
    options = MeasureOptions(num_images, rounds, reference=False, trajectories=False)
    chosen = (*(DIGITS if digits or not models else ()), *models)
    given = {name: value for name, value in conditioning.items() if value is not None}
    pages = []
    for table in (STUDIES[name] for name in tables or STUDIES):
        outcomes: list[Outcome | FigureOutcome] = []
        for model in list_models(table, chosen):
            name = Path(model).name
            click.echo(f"{table.name} on {name} ...", err=True)
            run = run_figure if isinstance(table, ErrorFigure) else run_table
            outcomes.append(run(table, model, output / name, options, **given))
        source = [word for model in models for word in ("--model", model)] + ["--digits"] * (digits or not models)
        source += [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        command = ["python", "benchmarks/paper.py", table.name, *source, "--num-images", str(num_images)]
        pages.append(write_page(outcomes, output, shlex.join(command), num_images))
        click.echo((output / f"{table.name}.md").read_text(encoding="utf-8"))
    data = {"machine": describe_machine(), "num_images": num_images, "studies": pages}
    (output / "paper.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    verdicts = [{"table": page["study"], "findings": page["findings"]} for page in pages]
    click.echo(json.dumps({"benchmark": "paper", "machine": describe_machine(), "tables": verdicts}))


if __name__ == "__main__":
    main()
