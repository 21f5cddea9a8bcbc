"""What all commands have in common: --json, -q, -v and --debug, variables of the environment, and conflicts."""

import contextlib
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource

from zeus_trt.errors import FailedCheck, ZeusError, escape

PREFIX = "ZEUS_TRT"
QUIET, VERBOSE, DEBUG, JSON = "zeus_trt.quiet", "zeus_trt.verbose", "zeus_trt.debug", "zeus_trt.json"
_GIVEN = (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def _remember(key: str):
    def callback(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        ctx.meta[key] = ctx.meta.get(key) or value

    return callback


def list_common_options() -> list[click.Option]:
    """Options of the program, which stand before or after the name of the command."""
    texts = {
        ("-q", "--quiet"): (QUIET, "No progress and no remarks on stderr; warnings stay."),
        ("-v", "--verbose"): (VERBOSE, "Say more on stderr: choices, and what libraries log."),
        ("--debug",): (DEBUG, "Show the traceback of an error."),
    }
    return [
        click.Option(
            flags,
            is_flag=True,
            help=text,
            expose_value=False,
            callback=_remember(key),
            envvar=f"{PREFIX}_{flags[-1].lstrip('-').upper()}",
        )
        for flags, (key, text) in texts.items()
    ]


class Command(click.Command):
    """A command that returns its result as JSON data, which ``--json`` prints instead of text.

    Args:
        exclusive: Groups of parameters of which one may be given. What the environment gives yields to the command
            line.
        needs: Parameters that have no effect without another one.
    """

    def __init__(
        self,
        *args: Any,
        exclusive: Sequence[Sequence[str]] = (),
        needs: Mapping[str, str] | None = None,
        **settings: Any,
    ):
        super().__init__(*args, **settings)
        self._exclusive, self._needs = exclusive, needs or {}
        text = "Print the result as one line of JSON on stdout, and all text on stderr."
        as_json = click.Option(["--json"], is_flag=True, expose_value=False, callback=_remember(JSON), help=text)
        self.params += [as_json, *list_common_options()]
        for option in self.params:
            if isinstance(option, click.Option) and not option.envvar:
                name = f"{self.name}_{find_flag(option).lstrip('-')}".replace("-", "_").upper()
                option.envvar = f"{PREFIX}_{name}"

    def invoke(self, ctx: click.Context) -> Any:
        """Refuses conflicts, then runs; text goes to stderr where JSON goes to stdout."""
        for group in self._exclusive:
            self._choose_one(ctx, group)
        for name, other in self._needs.items():
            if is_given(ctx, name) and not is_given(ctx, other):
                raise click.UsageError(f"{say_flag(ctx, name)} needs {say_flag(ctx, other)}", ctx)
        with hold_signals():
            import torch  # noqa: F401  (its C++ aborts where a signal raises in it)
        with _set_up_libraries(ctx), _name_flags(self):
            if not ctx.meta.get(JSON):
                return super().invoke(ctx)
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    result = super().invoke(ctx)
            except FailedCheck as failed:
                _print_json(failed.result)
                raise
        _print_json(result)
        return result

    def _choose_one(self, ctx: click.Context, group: Sequence[str]) -> None:
        given = [name for name in group if is_given(ctx, name)]
        typed = [name for name in given if ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE]
        for name in set(given) - set(typed) if typed else ():
            option = next(param for param in self.params if param.name == name)
            default = option.get_default(ctx)  # an object of click's where there is none
            ctx.params[name] = default if isinstance(default, str | int | float | tuple) else None
            ctx.set_parameter_source(name, ParameterSource.DEFAULT)
            say(f"{option.envvar} is left out: {say_flag(ctx, typed[0])} was given")
        if len(left := typed or given) > 1:
            flags = " and ".join(say_flag(ctx, name) for name in left)
            raise click.UsageError(f"{flags} exclude each other: give one of them", ctx)


@contextlib.contextmanager
def _name_flags(command: click.Command) -> Iterator[None]:
    """Calls the thing that an error names by its option, where it is a parameter of the command."""
    try:
        yield
    except ZeusError as error:
        name, colon, rest = str(error).partition(":")
        flags = {option.name: find_flag(option) for option in command.params if isinstance(option, click.Option)}
        if name in flags:
            error.args = (f"{flags[name]}{colon}{rest}",)
        raise


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Keeps signals that raise until the block is over."""
    names = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    is_main = threading.current_thread() is threading.main_thread()
    before = {name: signal.getsignal(name) for name in names if is_main and callable(signal.getsignal(name))}
    held: list[int] = []
    for name in before:
        signal.signal(name, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
        for number in held[:1]:
            signal.raise_signal(number)


@contextlib.contextmanager
def _set_up_libraries(ctx: click.Context) -> Iterator[None]:
    """Has libraries draw no bars where nobody sees them, and log with -v.

    Without it the blocks of modular pipelines are silent: each logs the traceback of an error that passes through it.
    """
    silent = ctx.meta.get(QUIET) or not sys.stderr.isatty()
    variables = {"TQDM_DISABLE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"} if silent else {}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    root, handler = logging.getLogger(), logging.StreamHandler()
    blocks = logging.getLogger("diffusers.modular_pipelines")
    levels = root.level, blocks.level
    if ctx.meta.get(VERBOSE):
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(logging.INFO)
    else:
        blocks.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        blocks.setLevel(levels[1])
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether a parameter was given, on the command line or by the environment."""
    return ctx.get_parameter_source(name) in _GIVEN


def find_flag(option: click.Parameter) -> str:
    """The long form of an option."""
    return max(option.opts, key=len)


def say_flag(ctx: click.Context, name: str) -> str:
    """The long form of the option that sets a parameter."""
    return find_flag(next(param for param in ctx.command.params if param.name == name))


def is_on(key: str) -> bool:
    """Whether an option of the program is set for the command that runs."""
    ctx = click.get_current_context(silent=True)
    return bool(ctx and ctx.meta.get(key))


def say(text: str) -> None:
    """Prints a remark on stderr, unless there is -q."""
    if not is_on(QUIET):
        click.echo(escape(text), err=True)


def warn(text: str) -> None:
    """Prints a warning on stderr."""
    click.echo(escape(f"warning: {text}"), err=True)


def _print_json(data: Any) -> None:
    click.echo(json.dumps(_make_strict(data), allow_nan=False))


def _make_strict(data: Any) -> Any:
    """JSON has no number that is not finite: it becomes null."""
    if isinstance(data, Mapping):
        return {str(key): _make_strict(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_make_strict(value) for value in data]
    return None if isinstance(data, float) and data - data != 0 else data
