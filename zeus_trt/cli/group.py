"""The group of all commands: how each of them ends."""

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import click

from zeus_trt import __version__
from zeus_trt.cli.command import DEBUG, Command, list_common_options
from zeus_trt.errors import ZeusError, escape

INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 + SIGINT."""


class Commands(click.Group):
    """A group that shows a user's error as one sentence: exit code 1, 2 for usage, 128 + the signal that ended it."""

    command_class = Command

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Reads the options of the program."""
        _open_streams()
        with _escape_usage():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command."""
        try:
            with _raise_on_signals(), _escape_usage():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt as interrupt:
            click.echo("Interrupted.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from interrupt
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:  # nobody reads on: click ends quietly
                raise
            if ctx.meta.get(DEBUG):
                click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
            raise click.ClickException(escape(_explain(error))) from error


def _open_streams() -> None:
    """Opens what the caller closed to nothing: else a file of ours takes its number, and libraries print into it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (until the end)


@contextlib.contextmanager
def _escape_usage() -> Iterator[None]:
    """What was typed may be in click's messages."""
    try:
        yield
    except click.ClickException as error:
        vars(error)["message"] = escape(error.message)  # final to type checkers
        raise


def _explain(error: Exception) -> str:
    if isinstance(error, ZeusError):
        return str(error)
    if isinstance(error, OSError):
        return (
            f"file: got {error.filename or 'an error'} ({error.strerror or error}); expected a place with room that "
            "can be read and written. Choose another."
        )
    if isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("zeus_trt"):
        return f"package: got no module {error.name}; expected it to be installed. Install the package that has it."
    kind, said = type(error).__name__, next(iter(str(error).strip().splitlines()), "")
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError":
        return f"memory: got too little ({said or kind}); expected more. Ask for a smaller size, or for fewer images."
    return (
        f"zeus-trt: got a {kind}{f' ({said})' if said else ''}; expected no such error, which is a fault of zeus-trt. "
        "Run the command again with --debug, and report what it prints."
    )


@contextlib.contextmanager
def _raise_on_signals() -> Iterator[None]:
    """Ends by an exception on SIGTERM and SIGHUP, so that every ``with`` block and every child is closed."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    is_main = threading.current_thread() is threading.main_thread()
    kept = [name for name in names if is_main and signal.getsignal(name) == signal.SIG_DFL]
    for name in kept:
        signal.signal(name, end)
    try:
        yield
    finally:
        for name in kept:
            signal.signal(name, signal.SIG_DFL)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Variables set options: ZEUS_TRT_RUN_STEPS is --steps of run, ZEUS_TRT_QUIET is -q. "
    "Exit codes: 1 for what cannot be done, 2 for wrong usage, 130 after Ctrl-C, 143 after SIGTERM.",
)
@click.version_option(__version__, prog_name="zeus-trt")
def main() -> None:
    """Export diffusion denoisers to compiled engines, and skip more than half of their calls."""


main.params += list_common_options()
