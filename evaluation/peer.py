"""The accelerations that can be compared with: caches inside the network, and published criteria for skipping."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.criteria import AdaptivePolicy, EasyCachePolicy, SadaPolicy
from zeus_trt.zeus_graph.policy import PolicyMaker

PEERS: dict[str, tuple[float, ...]] = {
    "first-block-cache": (0.05, 0.15),
    "taylorseer": (3, 5),
    "taylorseer-lite": (3, 5),
    "pab": (2, 4),
    "mag-cache": (0.06, 0.24),
    "faster-cache": (2, 5),
    "cache-dit": (0.08, 0.24),
    "adaptive-diffusion": (0.01, 0.05),
    "sada": (2, 4),
    "easycache": (0.05, 0.2),
    "deepcache": (3,),
    "teacache": (0.2,),
}
"""Name -> the values of its one setting: a threshold, or the number of steps that a cache is used for."""

ABSENT = {
    "deepcache": "its package, deepcache 0.1.1 of December 2023, has had no release since, and wraps the pipelines of "
    "Stable Diffusion alone",
    "teacache": "diffusers does not have it: its first-block-cache builds on TeaCache's idea",
}
"""Name -> why it runs on no model here."""

_POLICIES: dict[str, Callable[[float], PolicyMaker]] = {
    "adaptive-diffusion": lambda value: partial(AdaptivePolicy, threshold=value),
    "easycache": lambda value: partial(EasyCachePolicy, threshold=value),
    "sada": lambda value: partial(SadaPolicy, interval=int(value)),
}


class UnsupportedError(Exception):
    """A peer cannot accelerate this model; the message has the reason."""


@dataclass(frozen=True)
class Peer:
    """An acceleration at one value of its setting.

    Args:
        name: One of ``PEERS``.
        value: The setting.
    """

    name: str
    value: float

    @classmethod
    def parse(cls, text: str) -> "tuple[Peer, ...]":
        """Reads ``taylorseer``, at all values of ``PEERS``, or ``taylorseer=4``.

        Raises:
            ZeusError: An unknown peer, or a value that is no number.
        """
        name, equals, value = text.strip().partition("=")
        if name not in PEERS:
            raise ZeusError(f"peer: got {name!r}; expected some of {', '.join(PEERS)}. Choose among these.")
        try:
            return tuple(cls(name, float(one)) for one in ([value] if equals else PEERS[name]))
        except ValueError:
            raise ZeusError(f"peer: got {text!r}; expected a number after the =. Write it like {name}=2.") from None

    @property
    def policy(self) -> PolicyMaker | None:
        """Makes the policy of a criterion for skipping; None for a cache inside the network."""
        make = _POLICIES.get(self.name)
        return make(self.value) if make else None

    def __str__(self) -> str:
        return f"{self.name} {self.value:g}"
