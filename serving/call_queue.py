"""Which rows go into the next call of the engine, and when."""

import math
from collections.abc import Sequence

from zeus_trt.serving.waiting_call import Caller, Key, Part, WaitingCall


class CallQueue:
    """The calls that wait, by key. It knows no thread and no clock: times are passed in.

    A batch is ready when it is full, when no other caller is expected that could join it, or when its oldest call has
    waited for ``max_wait`` while the engine was free. Keys take turns: one that was served goes behind those that wait.
    Within a key the call that is due first goes first, and takes as many rows as there is room for. Before those
    without a deadline goes a critical call: its caller has so many calls left that it would end alone.

    Args:
        max_wait: Seconds that a batch with room waits for callers that are expected, and that a caller is expected.
    """

    def __init__(self, max_wait: float):
        self._max_wait, self._free = max_wait, -math.inf
        self._groups: dict[Key, list[WaitingCall]] = {}  # in the order of their turns
        self._most: dict[Key, int] = {}
        self._expected: dict[Caller, tuple[Key | None, float]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def free(self, now: float) -> None:
        """The engine is free: it has answered a call."""
        self._free = now

    def expect(self, caller: Caller, key: Key | None, now: float) -> None:
        """A caller will soon call again, as it did last (``key``) or in any way (None)."""
        self._expected[caller] = key, now + self._max_wait

    def forget(self, caller: Caller) -> list[WaitingCall]:
        """A caller will not call again; returns its calls that waited, which are dropped."""
        self._expected.pop(caller, None)
        dropped = [call for calls in self._groups.values() for call in calls if call.caller is caller]
        for call in dropped:
            self._keep(call.key, [other for other in self._groups[call.key] if other is not call])
        return dropped

    def add(self, call: WaitingCall, most: int) -> bool:
        """A call arrives; ``most`` is how many rows a batch of its key can have.

        Returns:
            Whether ``take`` or ``next_change`` may say something else now.
        """
        is_first = call.key not in self._groups
        expected = self.put(call, most)
        return is_first or expected != call.key or self.is_ready(call.key, call.arrived)

    def put(self, call: WaitingCall, most: int) -> Key | None:
        """As ``add``, without looking whether anything is ready; returns the key that the caller was expected with."""
        expected, _ = self._expected.pop(call.caller, (call.key, 0.0))
        self._groups.setdefault(call.key, []).append(call)
        self._most[call.key] = most
        return expected

    def is_ready(self, key: Key, now: float) -> bool:
        """Whether the batch of a key shall not wait any longer."""
        calls = self._groups.get(key, [])
        if not calls:
            return False
        if sum(call.rows - call.taken for call in calls) >= self._most[key]:
            return True
        if max(self._free, min(call.arrived for call in calls)) + self._max_wait <= now:
            return True
        return not any(at in (None, key) and now < until for at, until in self._expected.values())

    def take(self, now: float) -> list[Part]:
        """The rows of the next call of the engine; none if no batch is ready."""
        self._expected = {caller: (key, until) for caller, (key, until) in self._expected.items() if now < until}
        ready = next((key for key in self._groups if self.is_ready(key, now)), None)
        if ready is None:
            return []
        calls, room, parts = self._groups.pop(ready), self._most[ready], []
        for call in _order(calls, room):
            if room:
                parts.append(call.take(room))
                room -= parts[-1].rows
        self._keep(ready, [call for call in calls if call.taken < call.rows])
        return parts

    def next_change(self) -> float | None:
        """When a batch may become ready although nobody calls; None if nothing waits."""
        arrivals = [call.arrived for calls in self._groups.values() for call in calls]
        if not arrivals:
            return None
        return min([max(self._free, min(arrivals)) + self._max_wait, *(until for _, until in self._expected.values())])

    def _keep(self, key: Key, calls: list[WaitingCall]) -> None:
        if calls:
            self._groups[key] = calls
        else:
            self._groups.pop(key, None)
            self._most.pop(key, None)


def _order(calls: Sequence[WaitingCall], most: int) -> list[WaitingCall]:
    """Calls of one key, in the order in which they go.

    Together they need at least ``fewest`` calls of the engine: their rows by ``most``, or the longest chain. Who has as
    many left has to be in each of them. With these first, any order of the others reaches ``fewest``. Their rows are
    fewer than ``most`` while others wait, so the call that is due first is never left out.
    """
    left = {call: max(call.caller.calls_left, 1) for call in calls}
    rows = sum(count * call.rows - call.taken for call, count in left.items())
    fewest = max(*left.values(), -(-rows // most))
    undated = min((call.due for call in calls if not call.caller.has_deadline), default=math.inf)

    def rank(call: WaitingCall) -> tuple[float, bool, float, float]:
        is_critical = left[call] >= fewest
        return min(call.due, undated) if is_critical else call.due, not is_critical, call.due, call.arrived

    return sorted(calls, key=rank)
