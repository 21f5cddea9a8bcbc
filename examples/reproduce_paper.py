"""The paper's studies on the digits models: what is claimed, what is measured here, and whether they agree.

python examples/reproduce_paper.py -o out/paper

Writes paper.md and paper.json, and a report of every study. It goes on where it stopped.
"""

import json
from pathlib import Path

import click

from zeus_trt.evaluation.studies import STUDIES, Outcome, run_study
from zeus_trt.machine import describe_machine

MODELS = ("digits-unet-epsilon", "digits-unet-v", "digits-unet-flow", "digits-dit-flow")
EVERY_MODEL = ("predictor-order", "parameterisation")  # the others are run on one
FOLDER = Path(__file__).parent / "models"


def choose_studies(models: tuple[str, ...], main: str) -> list[tuple[str, str]]:
    """Pairs of study and model."""
    return [(name, model) for name in STUDIES for model in models if name in EVERY_MODEL or model == main]


def write_tables(outcomes: list[Outcome], output: Path, num_images: int) -> None:
    """Writes the tables as Markdown, and everything as JSON."""
    machine = describe_machine()
    place = ", ".join(f"{name} {value}" for name, value in machine.items())
    head = f"# The paper's studies on the digits models\n\n{num_images} images of every run; {place}\n\n"
    tables = "\n".join(outcome.to_markdown() for outcome in outcomes)
    (output / "paper.md").write_text(head + tables, encoding="utf-8")
    data = {"machine": machine, "num_images": num_images, "studies": [outcome.to_json() for outcome in outcomes]}
    (output / "paper.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


@click.command()
@click.option("--model", "models", multiple=True, type=click.Choice(MODELS), default=MODELS, help="Which, repeated.")
@click.option("--main", default="digits-unet-flow", type=click.Choice(MODELS), show_default=True, help="For the rest.")
@click.option("--num-images", type=click.IntRange(1), default=8, show_default=True)
@click.option("-o", "--output", default="out/paper", show_default=True, type=click.Path(path_type=Path))
def main(models: tuple[str, ...], main: str, num_images: int, output: Path) -> None:
    outcomes = []
    for name, model in choose_studies(models, main):
        click.echo(f"{name} on {model} ...", err=True)
        outcomes.append(run_study(name, FOLDER / model, output / model, num_images=num_images))
        click.echo(outcomes[-1].to_markdown())
    write_tables(outcomes, output, num_images)
    click.echo(f"{output / 'paper.md'}")


if __name__ == "__main__":
    main()
