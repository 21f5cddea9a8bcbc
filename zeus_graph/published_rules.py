"""Published rules that act on outputs alone, each a row whose weights follow from step indices.

psi_t is the output at the last full step t, psi_p and psi_o those of the two full steps before it, y_i the output used
at step i, full or predicted, and j = 1, 2, ... counts the skipped steps after t.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from zeus_trt.zeus_graph.row_table import Row
from zeus_trt.zeus_graph.rules import Skip, add_terms, draw_line

_SLOPE = 0.5  # of damped
_CONTRACTION = 0.5  # sigma of HiCache
_DEGREE, _PENALTY, _BLEND = 4, 0.1, 0.5  # M, lambda and w of Spectrum
_ADAMS_BASHFORTH = ((1.0,), (3 / 2, -1 / 2), (23 / 12, -16 / 12, 5 / 12))

CHEBYSHEV_MEMORY = 10
"""Full outputs that ``chebyshev`` fits, as in its authors' forecaster."""


def _damped(skip: Skip) -> Row:
    """psi_t + (psi_t - psi_p) / 2: half of the slope, at a smaller variance than X, R, X, R in turn."""
    return draw_line(skip.t, skip.previous, _SLOPE)


def _adams_bashforth(skip: Skip, order: int) -> Row:
    """sum_k b_k y_(i-k), b the Adams-Bashforth weights (AB-Cache, Yu et al., 2025); fewer while there are fewer."""
    known = min(order, skip.step - skip.full_steps[0])
    return {skip.step - 1 - k: weight for k, weight in enumerate(_ADAMS_BASHFORTH[known - 1])}


def _hermite(skip: Skip) -> Row:
    """psi_t + sum_n s^n / n! H_n(s j) D^n psi for n = 1, 2 (HiCache, ICLR 2026), s = 1/2, H the physicists' Hermite.

    D psi = (psi_t - psi_p) / (t - p), and D^2 psi the difference of two of these over t - p, as in TaylorSeer; without
    a third full output there is no D^2.
    """
    scaled, gap = _CONTRACTION * skip.j, skip.t - skip.previous
    first, second = 2 * scaled * _CONTRACTION / gap, (4 * scaled**2 - 2) * _CONTRACTION**2 / 2 / gap
    terms = [(skip.t, 1.0 + first), (skip.previous, -first)]
    if len(skip.full_steps) > 2:
        oldest = skip.full_steps[-3]
        terms += [(skip.t, second / gap), (skip.previous, -second / gap)]
        terms += [(skip.previous, -second / (skip.previous - oldest)), (oldest, second / (skip.previous - oldest))]
    return add_terms(*terms)


def _foca(skip: Skip) -> Row:
    """psi_t + j/2 ((psi_t - psi_p) + (y_(i-1) - y_(i-2))): FoCa (Zheng et al., 2025), Heun on a BDF2 forecast."""
    half = skip.j / 2
    return add_terms((skip.t, 1 + half), (skip.previous, -half), (skip.step - 1, half), (skip.step - 2, -half))


def _chebyshev(skip: Skip) -> Row:
    """(1 - w) (psi_t + (psi_t - psi_p) / 2) + w f(i): Spectrum (CVPR 2026), w = 1/2.

    f is the ridge fit (penalty 0.1) of the Chebyshev polynomials T_0 ... T_4 through the last full outputs, at
    2 i / N - 1 of N evaluations.
    """
    nodes = list(skip.full_steps[-CHEBYSHEV_MEMORY:])
    places = np.array([*nodes, skip.step]) * 2 / skip.count - 1
    basis = np.polynomial.chebyshev.chebvander(places, _DEGREE)
    known, asked = basis[:-1], basis[-1]
    fitted = known @ np.linalg.solve(known.T @ known + _PENALTY * np.eye(_DEGREE + 1), asked)
    line = draw_line(skip.t, skip.previous, _SLOPE)
    terms = [(source, (1 - _BLEND) * weight) for source, weight in line.items()]
    return add_terms(*terms, *((node, _BLEND * float(weight)) for node, weight in zip(nodes, fitted, strict=True)))


PUBLISHED: dict[str, Callable[[Skip], Row]] = {
    "damped": _damped,
    **{f"adams-bashforth-{order}": partial(_adams_bashforth, order=order) for order in (2, 3)},
    "hermite": _hermite,
    "foca": _foca,
    "chebyshev": _chebyshev,
}
"""Rules that fill every skipped step by their formula, measured in steps."""
