"""A call of the denoiser that waits until it is answered, together with others or row by row."""

import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

Key = tuple[Hashable, ...]
"""Calls of equal keys may share a call of the engine: letter, shapes and types of rows, values of what has no rows."""


@dataclass(eq=False)
class Caller:
    """Who calls: a request, or a thread that runs a pipeline. It counts what its calls shared.

    Args:
        calls: Calls of the engine that had rows of it.
        shared_calls: Those of them that had rows of others too.
        rows: Rows of these calls, all callers together, without padding.
        wait_seconds: Time that its calls were not in the engine.
        calls_left: Calls that it will still make, with the one that waits; 0 if nobody knows.
    """

    calls: int = field(default=0, init=False)
    shared_calls: int = field(default=0, init=False)
    rows: int = field(default=0, init=False)
    wait_seconds: float = field(default=0.0, init=False)
    calls_left: int = field(default=0, init=False)

    @property
    def has_deadline(self) -> bool:
        """Whether it has to be done at a certain time."""
        return False


class WaitingCall:
    """One call of one caller.

    Args:
        caller: Who waits for it.
        key: What calls that may join it have in common.
        inputs: By name: tensors (rows, ...) and, for names that are not in ``by_row``, whatever else the engine reads.
        by_row: The names of inputs with a row per row of the latents.
        arrived: When, in seconds of a clock.
        due: When it is due by the same clock: earlier ones go first.
        on_done: Called when it is over, instead of ``wait``.
    """

    def __init__(
        self,
        caller: Caller,
        key: Key,
        inputs: Mapping[str, torch.Tensor],
        by_row: tuple[str, ...],
        arrived: float,
        due: float,
        on_done: "Callable[[WaitingCall], None] | None" = None,
    ):
        self.caller, self.key, self.inputs, self.by_row = caller, key, dict(inputs), by_row
        self.arrived, self.due = arrived, due
        self.rows = len(inputs[by_row[0]])
        self.taken = 0
        self.engine_seconds = 0.0
        self._answers: list[torch.Tensor] = []
        self._error: BaseException | None = None
        self._on_done = on_done
        self._done = None if on_done else threading.Event()
        self.is_over = False

    @property
    def is_whole(self) -> bool:
        """Whether every row has its answer."""
        return sum(map(len, self._answers)) == self.rows

    def take(self, most: int) -> "Part":
        """Its next rows, ``most`` or what is left."""
        start, self.taken = self.taken, min(self.taken + most, self.rows)
        return Part(self, start, self.taken)

    def answer(self, output: torch.Tensor) -> None:
        """Keeps the output of the rows that were taken next, (rows, ...)."""
        self._answers.append(output)

    def finish(self, error: BaseException | None = None) -> None:
        """Lets the caller go on, with the output or an error; only the first time counts."""
        if not self.is_over:
            self._error, self.is_over = error, True
            if self._on_done:
                self._on_done(self)
            else:
                assert self._done
                self._done.set()

    def wait(self, timeout: float | None = None) -> torch.Tensor | None:
        """The output, (rows, ...), once it is there; None if that takes longer than ``timeout`` seconds."""
        assert self._done
        return self.read() if self._done.wait(timeout) else None

    def read(self) -> torch.Tensor:
        """The output, (rows, ...), of a call that is over; raises its error."""
        if self._error:
            raise self._error
        return self._answers[0] if len(self._answers) == 1 else torch.cat(self._answers)


class Part(NamedTuple):
    """Rows ``start`` to ``stop`` of a call."""

    call: WaitingCall
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start

    def cut(self, rows: torch.Tensor) -> torch.Tensor:
        """Its rows of those of the call."""
        return rows if self.rows == self.call.rows else rows[self.start : self.stop]
