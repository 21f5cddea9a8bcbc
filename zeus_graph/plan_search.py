"""Local search of plans: starts, moves, and the descent between them."""

import numpy as np

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.surrogate import Surrogate

_EXPONENTS = (0.8, 1.0, 1.25, 1.5)  # of the starts: above 1 denser at the beginning


def check_nfe(nfe: int, num_evaluations: int) -> None:
    """Raises ZeusError unless a plan can have that many full steps."""
    least = min(3, num_evaluations)
    if not least <= nfe <= num_evaluations:
        raise ZeusError(
            f"budget: got {nfe} full steps; expected {least}..{num_evaluations}. The first two steps and the last are "
            "always full."
        )


def make_starts(count: int, nfe: int, restarts: int, seed: int) -> list[np.ndarray]:
    """(N,) bool each: warped spreads, and random plans."""
    starts = {}
    inner = np.arange(1, nfe - 2)
    for exponent in _EXPONENTS:
        steps = [0, 1, count - 1, *(1 + np.round((count - 2) * (inner / (nfe - 2)) ** exponent).astype(int))]
        full = np.isin(np.arange(count), steps)
        if full.sum() < nfe:  # two fell on one place
            full[np.flatnonzero(~full)[: nfe - full.sum()]] = True
        starts[full.tobytes()] = full
    generator = np.random.default_rng(seed % 2**64)  # numpy takes no negative ones
    for _ in range(restarts):
        steps = [0, 1, count - 1, *(2 + generator.permutation(count - 3)[: nfe - 3])]
        full = np.isin(np.arange(count), steps)
        starts[full.tobytes()] = full
    return list(starts.values())


def descend(surrogate: Surrogate, full: np.ndarray, reach: int | None = None) -> tuple[float, np.ndarray]:
    """The local optimum below a start, and its error; a move shifts a full step by at most ``reach``."""
    longest = max(2 * -(-full.size // int(full.sum())), int(np.diff(np.flatnonzero(full)).max()))
    best = float(surrogate.fit(full[None]).errors[0])
    while True:
        moves = list_moves(full, longest, reach)
        if not len(moves):
            return best, full
        errors = surrogate.fit(moves).errors
        place = int(errors.argmin())
        if not errors[place] < best * (1 - 1e-6):
            return best, full
        best, full = float(errors[place]), moves[place]


def list_moves(full: np.ndarray, longest: int, reach: int | None = None) -> np.ndarray:
    """(moves, N) bool: one inner full step shifted, no gap longer than ``longest``."""
    inner = [step for step in np.flatnonzero(full) if 2 <= step < full.size - 1]
    reach = full.size if reach is None else reach
    pairs = np.array(
        [(old, new) for old in inner for new in np.flatnonzero(~full) if abs(old - new) <= reach], int
    ).reshape(-1, 2)
    moves = np.repeat(full[None], len(pairs), axis=0)
    places = np.arange(len(pairs))
    moves[places, pairs[:, 0]], moves[places, pairs[:, 1]] = False, True
    steps = np.arange(full.size)
    newest = np.maximum.accumulate(np.where(moves, steps, 0), axis=1)  # full step, at each; the first and last are full
    return moves[((steps[1:] - newest[:, :-1]) <= longest).all(axis=1)]
