"""The command line that repeats a call."""

import inspect
import shlex
from collections.abc import Callable, Sequence
from typing import Any


def write_command(
    name: str, function: Callable[..., Any] | Sequence[Callable[..., Any]], *arguments: Any, **options: Any
) -> str:
    """The ``zeus-trt`` command of a function that has the command's options as keywords, quoted for a shell.

    Args:
        name: Of the command.
        function: Its defaults are left out; or several, of which the first that has an option counts.
        arguments: Of the command.
        options: By their names; lists are written with commas, True as the name alone.
    """
    functions = [function] if callable(function) else list(function)
    defaults = {name: p.default for one in reversed(functions) for name, p in inspect.signature(one).parameters.items()}
    words = ["zeus-trt", name, *map(str, arguments)]
    for option, value in options.items():
        if option in ("inputs", "adapters"):
            words += [word for text in value for word in (f"--{option.removesuffix('s')}", text)]
        elif value is not None and value != defaults[option]:
            several = value if isinstance(value, list | tuple | range) else [value]
            text = ",".join(getattr(one, "__name__", str(one)) for one in several)
            words += [f"--{option.replace('_', '-')}", *([] if value is True else [text])]
    return shlex.join(words)
