"""The tables of the ZEUS paper: what each of them claims, what runs for it, and which rule judges it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import paper_baselines as baselines
import paper_rules as rules
from paper_prediction import PredictionErrors, amplifies_by_a_third_order, beats_the_first_order

from zeus_trt.evaluation.row import Row
from zeus_trt.evaluation.variants import Grid

AnyRule = TypeVar("AnyRule")

WITHOUT_WARM_UP = "none"
ORDERS = ("local-1", "local-2", "local-3")
PAPER_FEW_STEPS = "first:11,from:45"  # the one rule with the paper's calls, but for the last step of 15

_DEFAULT = "the default window: the first 20 % and the last 10 % of the steps are full"
_NO_WARM_UP = "without warm-up: the first two steps and the last are full, besides one of every r + 1"


@dataclass(frozen=True)
class Claim(Generic[AnyRule]):
    """A claim of the paper, or a question of ours, and the rule that judges it.

    Args:
        text: The claim.
        rule: Its rule.
        paper: The paper's numbers, where they are known to us.
    """

    text: str
    rule: AnyRule
    paper: str = ""


@dataclass(frozen=True)
class Finding:
    """A claim, what was measured, and whether the two agree.

    Args:
        claim: The claim.
        paper: The paper's numbers.
        measured: Ours.
        agrees: None where nothing is claimed or not all was measured.
    """

    claim: str
    paper: str
    measured: str
    agrees: bool | None


@dataclass(frozen=True)
class PaperTable:
    """One table.

    Args:
        name: On the command line.
        title: The question.
        grid: What runs.
        claims: What the paper says of one model.
        across: What it says of all models together.
        every_model: Run it on every model, not on the first one only.
        digits: The digits models to run it on instead of the first one.
        settings: How the paper sets it up, in words.
    """

    name: str
    title: str
    grid: Grid
    claims: tuple[Claim[rules.Rule], ...] = ()
    across: tuple[Claim[rules.RuleAcross], ...] = ()
    every_model: bool = False
    digits: tuple[str, ...] = ()
    settings: str = _DEFAULT

    def judge(self, rows: Sequence[Row], state: Mapping[str, int]) -> list[Finding]:
        """What the rows of one model say of every claim."""
        return [Finding(claim.text, claim.paper, *claim.rule(rows, state)) for claim in self.claims]

    def judge_across(self, models: Mapping[str, Sequence[Row]]) -> list[Finding]:
        """What the rows of all models say of the claims about them together."""
        return [Finding(claim.text, claim.paper, *claim.rule(models)) for claim in self.across]


@dataclass(frozen=True)
class ErrorFigure:
    """The figure of the errors of predictions by step; fields as in ``PaperTable``.

    Args:
        window: Steps that stay full at both ends.
        ratios: Skipped steps after each full one.
        predictors: The rules; ``zeus`` is ours beside the paper's orders.
    """

    name: str
    title: str
    claims: tuple[Claim[Callable[[Sequence[PredictionErrors]], rules.Verdict]], ...]
    window: str = WITHOUT_WARM_UP
    settings: str = _NO_WARM_UP
    ratios: Sequence[int] = (1, 2, 3)
    predictors: Sequence[str] = (*ORDERS, "zeus")
    every_model: bool = False
    digits: tuple[str, ...] = ()

    def judge(self, errors: Sequence[PredictionErrors]) -> list[Finding]:
        """What the errors say of every claim."""
        return [Finding(claim.text, claim.paper, *claim.rule(errors)) for claim in self.claims]


TABLES = {
    table.name: table
    for table in (
        PaperTable(
            "predictor-order",
            "Predictor order: reuse, second, third",
            Grid(ratios=(0, 1, 2, 3), predictors=("reuse", "lagrange-2", "zeus", "lagrange-3"), window=WITHOUT_WARM_UP),
            (
                Claim("a second-order predictor is better than reuse", rules.beats_reuse),
                Claim("a third order does not help", rules.gains_nothing_by_a_third_order),
            ),
            every_model=True,
            settings=_NO_WARM_UP,
        ),
        PaperTable(
            "figure-3a",
            "Figure 3a: first, second, third order over the outputs used just before",
            Grid(ratios=(0, 1, 2, 3), predictors=ORDERS, window=WITHOUT_WARM_UP),
            (
                Claim(
                    "a second order is better than a first, where one step is skipped", rules.gains_by_a_second_order
                ),
                Claim("a third order is worse than a second", rules.loses_by_a_third_order),
            ),
            settings=_NO_WARM_UP,
        ),
        PaperTable(
            "interleaving",
            "Reuse-only, predictor-only, interleaved",
            Grid(ratios=range(8), predictors=("reuse", "extrapolate", "zeus")),
            (
                Claim("reuse-only is worse than interleaved", rules.beats_reuse),
                Claim(
                    f"predictor-only collapses at high r (here: below {rules.COLLAPSED_DB:.0f} dB from r = "
                    f"{rules.HIGH_RATIO} on)",
                    rules.collapses,
                ),
            ),
        ),
        PaperTable(
            "solver-order",
            "Solver order: Euler, DPM-Solver++ 2 and 3",
            Grid(ratios=(0, 2, 3), solvers=tuple(rules.SOLVER_ORDERS)),
            (
                Claim(
                    "increasing solver order consistently improves LPIPS and FID", rules.improves_perception_with_order
                ),
                Claim(
                    f"PSNR is unchanged by solver order (here: within {rules.SAME_DB:.0f} dB)",
                    rules.keeps_psnr_with_order,
                ),
            ),
        ),
        PaperTable(
            "few-steps",
            "Few steps: 50, 25, 15",
            Grid(ratios=(0, 2, 3), steps=(50, 25, 15), window=PAPER_FEW_STEPS),
            (
                Claim(
                    "similarity is preserved or improved as steps shrink (here: PSNR falls by at most "
                    f"{rules.SAME_DB:.0f} dB)",
                    rules.keeps_similarity_with_fewer_steps,
                ),
                Claim(
                    "calls of the denoiser",
                    rules.needs_few_calls,
                    "27, 16, 12 at 50, 25, 15 steps: at most 1.85x, 1.56x, 1.25x",
                ),
                Claim(
                    "are skipped steps better than fewer steps, against the longest full run? (our question)",
                    rules.lists_calls,
                ),
            ),
            settings="steps 0 to 10 are full, and step 45 and all later ones",
        ),
        PaperTable(
            "parameterisation",
            "What the model predicts: epsilon, v, x0, flow",
            Grid(ratios=(0, 2, 3, 4)),
            across=(
                Claim(
                    f"skipping works whatever the model predicts (here: {rules.VISIBLE_DB:.0f} dB or more)",
                    rules.keeps_the_picture_on_every_model,
                ),
                Claim(
                    f"it loses the same on every model (here: within {rules.SAME_DB:.0f} dB)",
                    rules.loses_the_same_on_every_model,
                ),
            ),
            every_model=True,
        ),
        PaperTable(
            "memory",
            "Memory: r = 2 and r = 4",
            Grid(ratios=(0, 2, 4)),
            (Claim("memory is O(1): it does not grow with r", rules.needs_constant_memory),),
        ),
        PaperTable(
            "baselines",
            "Rivals: TaylorSeer, AdaptiveDiffusion, SADA, DeepCache, TeaCache",
            baselines.RIVALS,
            (Claim("a higher similarity than each rival at equal or fewer calls", baselines.beats_rivals),),
            digits=("digits-unet-flow", "digits-dit-flow"),
        ),
        PaperTable(
            "composition",
            "Caches inside the network, below a plan",
            baselines.COMPOSED,
            (
                Claim(
                    "it is compatible with such accelerations (our reading: each cell needs fewer calls than its plan "
                    "and its cache alone; work counted in operations)",
                    baselines.needs_fewer_calls_composed,
                ),
                Claim("the same in time: each cell is faster than both alone", baselines.is_faster_composed),
                Claim(
                    "its similarity stays close (our reading: at most "
                    f"{baselines.CLOSE_DB:.0f} dB below the worse of the two alone)",
                    baselines.stays_close_composed,
                ),
            ),
            digits=("digits-dit-flow",),
        ),
    )
}
"""Name -> table."""

_CLAIMS = (
    Claim("a second order errs less than a first, right after a full step", beats_the_first_order),
    Claim("a third order amplifies the error", amplifies_by_a_third_order),
)
FIGURES = {
    figure.name: figure
    for figure in (
        ErrorFigure("figure-3b", "Figure 3b: the error of each prediction, step by step", _CLAIMS),
        ErrorFigure(
            "figure-3b-warm-up", "Figure 3b with warm-up: the error of each prediction", _CLAIMS, "default", _DEFAULT
        ),
    )
}
STUDIES: dict[str, PaperTable | ErrorFigure] = {**TABLES, **FIGURES}
"""Name -> table or figure."""
