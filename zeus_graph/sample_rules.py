"""Published rules that read samples too: the current one, and those at past full steps.

psi_t is the output at the last full step t, x_i the sample before step i, y_i the output used at step i, and m_i the
model input at it, a multiple of x_i.
"""

from collections.abc import Callable

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph.row_table import Row, Sample
from zeus_trt.zeus_graph.rules import Skip, add_terms


def _x0(skip: Skip) -> Row:
    """The output that stands for the clean sample of step t again: (x0_t - a_i x_i) / b_i, with x0 = a x + b psi."""
    (a_then, b_then), (a_now, b_now) = skip.grid[skip.t].clean, skip.grid[skip.step].clean
    if not b_now:
        raise ZeusError(
            f"predictor x0: got no noise at step {skip.step}; expected some at skipped steps. Run that one in full."
        )
    return add_terms((skip.t, b_then / b_now), (Sample(skip.t), a_then / b_now), (Sample(skip.step), -a_now / b_now))


def _residual(skip: Skip) -> Row:
    """m_i + (psi_t - m_t): EasyCache (Zhou et al., 2025), MagCache on the whole network."""
    return add_terms(
        (skip.t, 1.0), (Sample(skip.step), skip.grid[skip.step].scale), (Sample(skip.t), -skip.grid[skip.t].scale)
    )


def _mean_velocity(skip: Skip) -> Row:
    """y_(i-1) - J (s_(i+1) - s_i): MeanCache (ICLR 2026), s the sigmas.

    J = (psi_p - (x_i - x_p) / (s_i - s_p)) / (s_i - s_p), from the sample at the full step p before t: the authors look
    the beginning of this interval up in a table for each of their schedules.
    """
    begin, now, then = skip.grid[skip.previous], skip.grid[skip.step], skip.grid[skip.step + 1]
    span = now.sigma - begin.sigma
    if not (begin.is_slope and now.is_slope) or not span:
        raise ZeusError(
            f"predictor mean-velocity: got a solver whose output at step {skip.step} is not the slope of its sample; "
            "expected a flow, or epsilon with the samples of Euler (x0 + sigma noise). Choose another predictor."
        )
    share = (then.sigma - now.sigma) / span
    return add_terms(
        (skip.step - 1, 1.0),
        (skip.previous, -share),
        (Sample(skip.step), share / span),
        (Sample(skip.previous), -share / span),
    )


SAMPLE_RULES: dict[str, Callable[[Skip], Row]] = {"x0": _x0, "residual": _residual, "mean-velocity": _mean_velocity}
"""Rules over outputs and samples, which fill every skipped step by their formula; their grid is of ``Noise``."""
