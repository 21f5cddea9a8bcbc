"""The most that a client may ask for."""

from dataclasses import dataclass

from zeus_trt.zeus_graph.counts import check_count


@dataclass(frozen=True)
class Limits:
    """The most that a client may ask for; the last five are of HTTP.

    Args:
        images: Pictures of a request.
        steps: Solver steps.
        pixels: Width times height of a picture.
        prompt: Characters of a prompt.
        body: Bytes of a request.
        body_seconds: Time until a request's body is there.
        streams: Requests with ``stream`` that run at a time.
        seconds: Time until a request's result is there.
        connections: Open connections.
    """

    images: int = 8
    steps: int = 200
    pixels: int = 2048 * 2048
    prompt: int = 4000
    body: int = 1 << 16
    body_seconds: float = 10.0
    streams: int = 64
    seconds: float = 300.0
    connections: int = 512

    def __post_init__(self) -> None:
        for name in ("images", "steps", "pixels", "prompt", "body", "streams", "connections"):
            check_count(name, getattr(self, name), 1)
