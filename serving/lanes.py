"""The engines that calls go to; of those with an adapter, the last ones that were used."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from zeus_trt.serving.lane import Lane

MAX_ADAPTERS = 4
"""Adapters whose engines are open at a time by default: each holds a copy of the model's weights."""


class Lanes:
    """Lanes by name. One that was closed is opened again at its next call.

    Args:
        open_lane: Gives the lane of a name, in the thread that asks for it first; it may raise ZeusError.
        max_adapters: Adapters that have open engines at a time.
    """

    def __init__(self, open_lane: Callable[[str], Lane], max_adapters: int):
        self._open, self._max_adapters = open_lane, max_adapters
        self._lanes: dict[str, Lane] = {}
        self._used: dict[str, float] = {}  # by adapter, when
        self._opening, self._running = threading.Lock(), threading.Lock()

    def choose(self, name: str) -> Lane:
        """The lane of a name; opens its engine, with its errors, if that is not open."""
        if lane := self._lanes.get(name):
            return lane
        with self._opening:
            if name not in self._lanes:
                adapter = _read_adapter(name)
                if adapter:
                    self._make_room(adapter)
                self._lanes[name] = self._open(name)
                if adapter:
                    self._used[adapter] = time.monotonic()
            return self._lanes[name]

    @contextmanager
    def use(self, name: str) -> Iterator[Lane]:
        """The lane of a name, which is not closed within the block; errors as in ``choose``."""
        while True:
            lane = self.choose(name)
            with self._running:
                if self._lanes.get(name) is not lane:
                    continue
                if adapter := _read_adapter(name):
                    self._used[adapter] = time.monotonic()
                yield lane
                return

    def close(self) -> None:
        """Closes the engines with an adapter; the others are the session's."""
        with self._opening:
            for adapter in [*self._used]:
                self._close(adapter)

    def _make_room(self, adapter: str) -> None:
        """Closes engines until this adapter may have one."""
        others = sorted(self._used.keys() - {adapter}, key=self._used.__getitem__)
        for other in others[: max(len(others) + 1 - self._max_adapters, 0)]:
            self._close(other)

    def _close(self, adapter: str) -> None:
        with self._running:
            del self._used[adapter]
            lanes = [self._lanes.pop(name) for name in [*self._lanes] if _read_adapter(name) == adapter]
        for lane in lanes:
            lane.close()


def has_room(adapter: str | None, running: Iterable[str | None], max_adapters: int) -> bool:
    """Whether a request with this adapter may begin beside those that run."""
    return adapter is None or len({adapter, *running} - {None}) <= max_adapters


def name_lane(letter: str, adapter: str | None) -> str:
    """The lane of a letter of plans and an adapter: rows of other adapters never meet in a call."""
    return f"{letter}:{adapter}" if adapter else letter


def _read_adapter(lane: str) -> str:
    return lane.partition(":")[2]
