"""The calibrated plans of a bundle, and the choice of one by what it is to reach."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.guidance import Guidance
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan, is_made_for
from zeus_trt.zeus_graph.counts import is_finite, show

FOLDER = "plans"
_NEAR = 0.1 + 1e-9  # of the guidance scale that a plan was measured at


@dataclass(frozen=True)
class Offer:
    """A plan of the menu.

    Args:
        plan: The plan, with its predictor.
        psnr_db: PSNR of its pictures to those of the full run, dB, as calibration measured it; infinity for the full
            run.
        cost: Calls of the full engine per image and branch of guidance.
    """

    plan: Plan
    psnr_db: float
    cost: float

    def __str__(self) -> str:
        return f"{self.psnr_db:.1f} dB, {self.cost:g} of {len(self.plan)} calls"


class Menu:
    """The plans that ``zeus-trt calibrate --pareto`` left in a bundle."""

    def __init__(self, bundle: Bundle):
        self._bundle = bundle

    @cached_property
    def _known(self) -> tuple[CalibratedPlan, ...]:
        if self._bundle.adapter:  # they were measured without it
            return ()
        names = sorted(name for name in self._bundle.manifest.files if name.startswith(f"{FOLDER}/"))
        thing = "calibrated plan"
        return tuple(CalibratedPlan.from_json(strict_json.decode(self._bundle.read(name), thing)) for name in names)

    def list(self, num_steps: int, guidance: Guidance, find_fingerprint: Callable[[], str]) -> tuple[Offer, ...]:
        """The plans that were measured for such a run, the cheapest first; none is as cheap as one that is better.

        Args:
            num_steps: Solver steps.
            guidance: It may differ by a tenth from the scale that a plan was measured at, and in nothing else. A plan
                that was measured over a range is for the scales within it.
            find_fingerprint: Gives that of the traced solver; only called where something depends on it.

        Raises:
            ZeusError: A file of a plan that cannot be read.
        """
        is_plain = guidance == Guidance(guidance.scale, guidance.negative)
        near = [one for one in self._known if is_plain and one.num_steps == num_steps and _is_near(one, guidance.scale)]
        weights, quantized = self._bundle.manifest.weights_sha256, self._bundle.manifest.quantized
        fingerprint = find_fingerprint() if near else ""
        offers = [
            Offer(one.plan, one.chosen.psnr_db, one.chosen.plan.cost(one.quantized_cost or 1.0))
            for one in near
            if fingerprint in one.fingerprints
            and one.workload.get("weights_sha256") == weights
            and (quantized or "Q" not in one.chosen.plan.steps)
        ]
        best: list[Offer] = []
        for offer in sorted(offers, key=lambda offer: (offer.cost, -offer.psnr_db)):
            if not best or offer.psnr_db > best[-1].psnr_db:
                best.append(offer)
        return tuple(best)


@dataclass(frozen=True)
class Aim:
    """What a plan is to reach.

    Args:
        min_psnr: PSNR to the full run, dB, at least.
        fits: Whether there is time for a plan; then the best one that fits is chosen instead of the cheapest.
        load: What ``fits`` depends on, in words, for the reason.

    Raises:
        ZeusError: ``min_psnr`` is not a number.
    """

    min_psnr: float | None = None
    fits: Callable[[Offer], bool] | None = None
    load: str = ""

    def __post_init__(self) -> None:
        check_floor(self.min_psnr)

    def choose(self, offers: tuple[Offer, ...], num_evaluations: int) -> tuple[Plan | None, str]:
        """The plan, and why it; the full run is on every menu.

        Without calibrated plans a floor makes every step full, and without a floor no plan is chosen.

        Args:
            offers: The calibrated plans, the cheapest first.
            num_evaluations: Those of the full run.
        """
        least = -math.inf if self.min_psnr is None else self.min_psnr
        allowed = [offer for offer in offers if offer.psnr_db >= least]
        floor = "" if self.min_psnr is None else f" of at least {self.min_psnr:g} dB"
        full = Offer(Plan("F" * num_evaluations), math.inf, num_evaluations)
        if not offers:
            reason = "no plan was calibrated for this solver, number of steps and guidance"
            return (None, f"{reason}: the default") if not floor else (full.plan, f"{reason}: every step is full")
        if not allowed:
            return full.plan, f"no calibrated plan has {self.min_psnr:g} dB: every step is full"
        cheapest = allowed[0]
        if self.fits is None:
            return cheapest.plan, f"the cheapest{floor} ({cheapest})"
        fitting = [offer for offer in (*allowed, full) if self.fits(offer)]
        if not fitting:
            return cheapest.plan, f"none fits the deadline{self.load}: the cheapest{floor} ({cheapest})"
        return fitting[-1].plan, f"the best that fits the deadline{self.load} ({fitting[-1]})"


def check_floor(min_psnr: Any, says_plan: bool = False) -> None:
    """Refuses a floor that is no number, or one beside a plan."""
    if min_psnr is not None and not is_finite(min_psnr):
        raise ZeusError(f"min_psnr: got {show(min_psnr)}; expected a number of dB. Give one.")
    if min_psnr is not None and says_plan:
        raise ZeusError("min_psnr: got it beside a plan or a ratio; expected one of them. Leave one out.")


def refuse_floor() -> ZeusError:
    """What a floor is answered with where no bundle has a menu."""
    return ZeusError("min_psnr: got it without an engine; expected a bundle with calibrated plans. Give the bundle.")


def _is_near(plan: CalibratedPlan, scale: float) -> bool:
    made: Any = plan.workload.get("guidance_scale")
    if is_made_for(made, scale) or 1.0 in (made, scale):  # no guidance is another run
        return is_made_for(made, scale)
    return is_finite(made) and abs(scale - made) <= _NEAR * abs(made)
