"""The tables of the ZEUS paper on a model: what is claimed, what is measured, and whether they agree.

    python benchmarks/paper.py -o out/paper                                  all tables, on the digits models
    python benchmarks/paper.py memory few-steps -o out/paper --model DIR     some tables, on a bundle or a model folder

Writes paper.md and paper.json, and a report of every table. It goes on where it stopped.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from paper_tables import TABLES, PaperTable

from zeus_trt.comparing import open_compared
from zeus_trt.evaluation.compare import compare
from zeus_trt.evaluation.comparison import Comparison
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.table import Table
from zeus_trt.evaluation.variants import make_variants
from zeus_trt.machine import describe_machine
from zeus_trt.zeus_graph import Predictor, fold

MODELS = Path(__file__).parents[1] / "examples" / "models"
DIGITS = tuple(MODELS / f"digits-{name}" for name in ("unet-flow", "unet-epsilon", "unet-v", "dit-flow"))

_SHOWN = ("", "solver", "steps", "predictor", "NFE", "PSNR", "SSIM", "latents", "PSNR to most steps")
_WORDS = {True: "yes", False: "no", None: "-"}


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
    def findings(self) -> list[dict[str, Any]]:
        """Each claim, what was measured, and whether they agree."""
        verdicts = [(claim, claim.rule(self.comparison.rows, self.state)) for claim in self.table.claims]
        return [{"claim": claim.text, "measured": said, "agrees": agrees} for claim, (said, agrees) in verdicts]

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON data."""
        return {
            "study": self.table.name,
            "findings": self.findings,
            "state_latents": dict(self.state),
            "comparison": self.comparison.to_json(),
        }

    def to_markdown(self) -> str:
        """The outcome as two tables."""
        whole = self.comparison.table
        measured = Table([column for column in whole.columns if column.name in _SHOWN], whole.rows)
        findings = [(one["claim"], one["measured"], _WORDS[one["agrees"]]) for one in self.findings]
        claims = Table.of_texts(("the paper's claim, or our question", "measured", "agrees"), findings)
        title = f"### {self.table.title}: {self.comparison.settings['model']}"
        return f"{title}\n\n{measured.to_markdown()}\n{claims.to_markdown()}"


def run_table(
    table: PaperTable,
    model: Path,
    output: Path,
    options: MeasureOptions,
    *,
    guidance_scale: float | None = None,
    seed: int = 0,
    on_run: Callable[[int], None] | None = None,
) -> Outcome:
    """Runs a table on one model, and writes its report.

    Args:
        table: Which.
        model: A bundle or a model folder.
        output: Folder of the model's bundle, and of a folder with the report for each table.
        options: Images and rounds.
        guidance_scale: As in ``open_model``.
        seed: Sample k draws its noise from seed + k.
        on_run: As in ``compare``.

    Raises:
        ZeusError: As ``open_compared`` and ``compare``.
    """
    subject = open_compared(model, output, guidance_scale=guidance_scale, seed=seed)
    variants = make_variants(subject.workload, replace(table.grid, backends=subject.asked))
    comparison = compare(subject, variants, options, output=output / table.name, on_run=on_run)
    state = {}
    for variant in variants:
        setting = variant.setting
        if not variant.is_full and setting.predictor == Predictor():
            program = subject.workload.program(setting.num_steps, setting.solver)
            state[variant.label] = fold(program, setting.plan).num_latents
    return Outcome(table, comparison, state)


def write_pages(outcomes: Sequence[Outcome], output: Path, num_images: int) -> None:
    """Writes the tables as Markdown, and everything as JSON."""
    machine = describe_machine()
    place = ", ".join(f"{name} {value}" for name, value in machine.items())
    models = ", ".join(dict.fromkeys(outcome.comparison.settings["model"] for outcome in outcomes))
    head = f"# The paper's tables on {models}\n\n{num_images} images of every run; {place}\n\n"
    (output / "paper.md").write_text(head + "\n".join(one.to_markdown() for one in outcomes), encoding="utf-8")
    data = {"machine": machine, "num_images": num_images, "studies": [outcome.to_json() for outcome in outcomes]}
    (output / "paper.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...", type=click.Choice(list(TABLES)))
@click.option("--model", "models", multiple=True, type=click.Path(path_type=Path, exists=True), help="Repeat for more.")
@click.option("--digits", is_flag=True, help="The four digits models; the default without --model.")
@click.option("--num-images", type=click.IntRange(1), default=8, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Timed runs of each row.")
@click.option("--guidance-scale", type=float, help="1 turns it off.  [default: 2 of class labels]")
@click.option("--seed", default=0, show_default=True, help="Image k has the noise of seed + k.")
@click.option("-o", "--output", default="out/paper", show_default=True, type=click.Path(path_type=Path))
def main(
    tables: tuple[str, ...],
    models: tuple[Path, ...],
    digits: bool,
    num_images: int,
    rounds: int,
    output: Path,
    **conditioning: Any,
) -> None:
    """Repeat tables of the paper on models: all by default. The first model runs every table, the others two."""
    options = MeasureOptions(num_images, rounds, reference=False, trajectories=False)
    chosen = (*(DIGITS if digits or not models else ()), *models)
    outcomes = []
    for table in (TABLES[name] for name in tables or TABLES):
        for model in chosen if table.every_model else chosen[:1]:
            click.echo(f"{table.name} on {model.name} ...", err=True)
            outcomes.append(run_table(table, model, output / model.name, options, **conditioning))
            click.echo(outcomes[-1].to_markdown())
    write_pages(outcomes, output, num_images)
    findings = [
        {"table": one.table.name, "model": one.comparison.settings["model"], "findings": one.findings}
        for one in outcomes
    ]
    click.echo(json.dumps({"benchmark": "paper", "machine": describe_machine(), "tables": findings}))


if __name__ == "__main__":
    main()
