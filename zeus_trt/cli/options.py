"""Options that commands share, and what they do with their results."""

import json
import math
import re
import sys
from pathlib import Path

import click


class Names(click.ParamType):
    """Words with commas between them."""

    name = "name,name,..."

    def convert(self, value, param, ctx) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in value.split(",") if part.strip())
        return names or self.fail(f"{value!r} is not a list of names such as a,b", param, ctx)


class Number(click.ParamType):
    """A number that is finite."""

    name = "float"

    def __init__(self, least: float = -math.inf, most: float = math.inf):
        self.least, self.most = least, most

    def convert(self, value, param, ctx) -> float:
        number = click.FLOAT.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        if not self.least <= number <= self.most:
            self.fail(f"{value} is not in {self.least:g}..{self.most:g}", param, ctx)
        return number


class Numbers(click.ParamType):
    """Whole numbers with commas between them."""

    name = "n,n,..."

    def __init__(self, least: float = -math.inf):
        self.least = least

    def convert(self, value, param, ctx) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 0,2,3", param, ctx)
        if min(numbers) < self.least:
            self.fail(f"{min(numbers)} is less than {self.least:g}", param, ctx)
        return numbers


class Range(click.ParamType):
    """A symbol, its smallest and its largest size."""

    name = "NAME=LOW-HIGH"

    def convert(self, value, param, ctx) -> tuple[str, int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\w+)=(\d+)(?:-(\d+))?", value)
        if not found:
            self.fail(f"{value!r} is not a range such as batch=1-4", param, ctx)
        return found[1], int(found[2]), int(found[3] or found[2])


class Size(click.ParamType):
    """Height and width."""

    name = "HxW"

    def convert(self, value, param, ctx) -> tuple[int, int]:
        try:
            height, width = (int(part) for part in str(value).split("x"))
        except ValueError:
            self.fail(f"{value!r} is not a size such as 512x448", param, ctx)
        if height < 1 or width < 1:
            self.fail(f"{value!r} has a side below 1", param, ctx)
        return height, width


class Argument(click.ParamType):
    """An argument of a pipeline's call: a JSON value, a word, or a file that is a picture, JSON, .npy or .npz."""

    name = "NAME=VALUE|FILE"

    def convert(self, value, param, ctx) -> tuple[str, object]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals or not name.isidentifier():
            self.fail(f"{value!r} is not an argument such as strength=0.5 or image=cat.png", param, ctx)
        from zeus_trt.argument_value import read_argument

        return name, read_argument(name, text)


guidance_option = click.option(
    "--guidance-scale", type=Number(), help="1 turns it off.  [default: the pipeline's own, 2 of class labels]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="End stdout with one JSON line.")


def progress(total: int | None):
    from tqdm import tqdm

    return tqdm(total=total, unit="call", leave=False, disable=None, file=sys.stderr)


def writes(path: Path):
    from zeus_trt.files import write_atomically

    return write_atomically(path)


def echo_json(wanted: bool, data: dict) -> None:
    if wanted:
        click.echo(json.dumps(data))
