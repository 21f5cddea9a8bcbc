"""Options that commands share, and what they do with their results."""

import json
import re
import sys
from pathlib import Path

import click


class Numbers(click.ParamType):
    """Whole numbers with commas between them."""

    name = "n,n,..."

    def convert(self, value, param, ctx) -> tuple[int, ...]:
        try:
            return value if isinstance(value, tuple) else tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 0,2,3", param, ctx)


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
        return height, width


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
