"""The one exception that means: the caller can fix this."""


class ZeusError(Exception):
    """A fault in what the user gave, or in what is missing on the machine.

    The message is one sentence of fact and one of advice:
    ``<thing>: got <x>; expected <y>. <what to do>``. The CLI prints it without
    a traceback and exits with code 1.
    """
