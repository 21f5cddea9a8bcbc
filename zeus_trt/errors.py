"""The one exception that means: the caller can fix this."""

from typing import Any

_LONGEST = 4000  # characters of a message


class ZeusError(Exception):
    """A fault in what the user gave, or a missing part of the machine.

    The message is one sentence of fact and one of advice:
    ``<thing>: got <x>; expected <y>. <what to do>``. The CLI prints it without
    a traceback and exits with code 1. It has no line break and no control
    character, whatever names and values from files are in it.
    """

    def __init__(self, message: object = ""):
        super().__init__(shorten(escape(str(message))))


class FailedCheck(ZeusError):
    """What was asked for was measured, and is not good enough.

    Args:
        message: As in ``ZeusError``.
        result: What was measured, as JSON data; the CLI prints it with ``--json`` all the same.
    """

    def __init__(self, message: object, result: dict[str, Any]):
        super().__init__(message)
        self.result = result


def escape(text: str) -> str:
    """``text`` on one line: line breaks, terminal escapes and characters that reorder text as ``\\n``, ``\\x1b``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def say_cause(error: BaseException) -> str:
    """An exception's words on one line, shortened, behind its class unless they explain themselves (ValueError)."""
    words = shorten(" ".join(str(error).split()))
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}".rstrip(": ")


def shorten(text: str, longest: int = _LONGEST) -> str:
    """``text`` without its middle, where it has more than ``longest`` characters."""
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]} [...] {text[-longest // 4 :]}"
