"""Options that commands share, and what they do with their results."""

import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import click

from zeus_trt.cli.command import QUIET, is_on

LINE_SECONDS = 10
"""Time between two lines of progress, where there is no terminal."""


class Names(click.ParamType):
    """Words with commas between them."""

    name = "name,name,..."

    def convert(self, value, param, ctx) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in value.split(",") if part.strip())
        return names or self.fail(f"{value!r} is not a list of names such as a,b", param, ctx)


class Text(click.types.StringParamType):
    """Text, of which a variable holds several, a line each."""

    envvar_list_splitter = "\n"


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


class Scale(click.ParamType):
    """A guidance scale, or a range of them."""

    name = "float|low:high"

    def convert(self, value, param, ctx) -> float | tuple[float, float]:
        if not isinstance(value, str) or ":" not in value:
            return value if isinstance(value, tuple) else Number().convert(value, param, ctx)
        low, high = (Number().convert(part, param, ctx) for part in value.split(":", 1))
        if not low < high:
            self.fail(f"{value!r} is not a range that rises such as 1.5:5", param, ctx)
        return low, high


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

input_option = click.option(
    "--input", "inputs", multiple=True, metavar="NAME=VALUE|FILE.npy",
    help="For bundles: conditioning, a number, a list, or a file; a row for every image, or several in turn.",
)  # fmt: skip

adapter_option = click.option(
    "--adapter", "adapters", multiple=True, metavar="NAME[:SCALE]",
    help="Adapter of the bundle that its engine has, at another scale; or several.",
)  # fmt: skip


def progress(total: int | None = None):
    """A bar of calls on stderr; a line now and then where that is no terminal, and nothing with -q."""
    from tqdm import tqdm

    if sys.stderr.isatty() or is_on(QUIET):
        return tqdm(total=total, unit="call", leave=False, disable=is_on(QUIET), file=sys.stderr)
    return Lines()


class Lines:
    """Progress in a file or a pipe: a line every few seconds, and one at the end."""

    def __init__(self) -> None:
        self._calls = 0
        self._start = self._shown = time.monotonic()

    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if self._calls and kind is None:
            self._show()

    def update(self, calls: int = 1) -> None:
        """Counts calls of the denoiser."""
        self._calls += calls
        if time.monotonic() - self._shown >= LINE_SECONDS:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        click.echo(f"{self._calls} calls in {self._shown - self._start:.0f} s", err=True)


def writes(path: Path):
    from zeus_trt.files import write_atomically

    return write_atomically(path)
