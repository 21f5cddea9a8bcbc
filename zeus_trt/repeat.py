"""The command line that repeats a call."""

import inspect
import shlex
from collections.abc import Callable
from typing import Any


def write_command(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """The ``zeus-trt`` command of a function that has the command's options as keywords, quoted for a shell.

    Args:
        name: Of the command.
        function: Its defaults are left out.
        arguments: Of the command.
        options: By their names in ``function``; lists are written with commas.
    """
    defaults = inspect.signature(function).parameters
    words = ["zeus-trt", name, *map(str, arguments)]
    for option, value in options.items():
        if value is not None and value != defaults[option].default:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple | range) else str(value)
            words += [f"--{option.replace('_', '-')}", text]
    return shlex.join(words)
