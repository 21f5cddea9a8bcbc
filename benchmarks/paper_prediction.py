"""Figure 3 of the ZEUS paper: how far each predicted output is from the real one, step by step.

A run with skipped steps calls the denoiser at these steps too, at its own latents, and uses the prediction: the figures
are those of the run as it is, and the real outputs change nothing in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from paper_rules import Verdict

from zeus_trt.evaluation.plots import encode_figure, make_figure
from zeus_trt.evaluation.table import Table
from zeus_trt.evaluation.workload import SessionWorkload
from zeus_trt.runtime import ClassifierFreeGuidance, Denoiser, Guidance, Session
from zeus_trt.zeus_graph import Plan, Predictor

NUM_STEPS = 50


@dataclass(frozen=True)
class PredictionErrors:
    """Errors of the predictions of one run.

    Args:
        predictor: The rule.
        ratio: Skipped steps after each full one.
        plan: Letters of the steps.
        mse: Mean of (predicted - real output)^2 over the batch, by step; None at full steps.
    """

    predictor: str
    ratio: int
    plan: str
    mse: tuple[float | None, ...]

    @property
    def skipped(self) -> list[float]:
        """The errors alone."""
        return [error for error in self.mse if error is not None]

    @property
    def mean(self) -> float:
        """Over the skipped steps."""
        return sum(self.skipped) / len(self.skipped)

    @property
    def first(self) -> float:
        """Mean over the skipped steps that come right after a full one."""
        found = [
            error for letter, error in zip(self.plan, self.mse[1:], strict=False) if letter == "F" and error is not None
        ]
        return sum(found) / len(found)


class Filling:
    """A guided denoiser that is called at every step, and answers with predictions at skipped ones.

    Args:
        denoiser: The real one, after guidance.
        plan: Which steps are skipped.
        predictor: The rule, of step indices alone.
    """

    def __init__(self, denoiser: Denoiser, plan: Plan, predictor: Predictor):
        self._denoiser, self._rows = denoiser, predictor.rows(plan)
        self._used: list[torch.Tensor] = []
        self.mse: list[float | None] = []

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """The output used at the next step."""
        real = self._denoiser(**inputs).clone()
        row = self._rows[len(self._used)]
        used = real if row is None else sum(self._used[source] * weight for source, weight in row.items())
        self.mse.append(None if row is None else float((used - real).double().square().mean()))
        self._used.append(used)
        return used.clone()


def measure_errors(
    workload: SessionWorkload,
    plan: Plan,
    predictor: str,
    num_images: int,
    ratio: int = 0,
    num_steps: int = NUM_STEPS,
) -> PredictionErrors:
    """Runs a plan on samples 0 .. num_images - 1 of a workload, and measures its predictions."""
    session, number = Session(workload.bundle), range(num_images)
    fillings: list[Filling] = []
    conditioning = session.label_images(workload.labels, num_images)

    def wrap(denoiser: Denoiser) -> Denoiser:
        guided = denoiser
        if workload.guidance_scale != 1.0:
            labels = session.bundle.manifest.labels
            negative = {"class_labels": torch.full((num_images,), labels.null)} if labels else {}
            guided = ClassifierFreeGuidance(workload.guidance_scale, negative)(denoiser)
        fillings.append(Filling(guided, plan, Predictor.parse(predictor)))
        return fillings[-1]

    seeds = [workload.seed + k for k in number]
    session.generate(
        conditioning,
        plan=Plan("F" * len(plan)),
        num_steps=num_steps,
        seed=seeds,
        guidance=Guidance(wrap=wrap),
        mode="step",
    )
    session.close()
    return PredictionErrors(predictor, ratio, str(plan), tuple(fillings[-1].mse))


def beats_the_first_order(errors: Sequence[PredictionErrors]) -> Verdict:
    """The second order errs less than the first right after a full step, at every ratio."""
    return _compare(errors, "local-2", "local-1", lambda one: one.first, "right after a full step")


def amplifies_by_a_third_order(errors: Sequence[PredictionErrors]) -> Verdict:
    """The third order errs more than the second, over all skipped steps, at every ratio."""
    return _compare(errors, "local-2", "local-3", lambda one: one.mean, "over all skipped steps")


def _compare(
    errors: Sequence[PredictionErrors], less: str, more: str, read: Callable[[PredictionErrors], float], where: str
) -> Verdict:
    found = {(one.predictor, one.ratio): read(one) for one in errors}
    ratios = sorted({ratio for name, ratio in found if name == less and (more, ratio) in found})
    said = ", ".join(f"r = {ratio}: {found[less, ratio]:.1e} and {found[more, ratio]:.1e}" for ratio in ratios)
    agrees = all(found[less, ratio] < found[more, ratio] for ratio in ratios) if ratios else None
    return f"MSE {where}, {less} and {more}: {said}", agrees


def make_error_table(errors: Sequence[PredictionErrors]) -> Table:
    """A row per step, a column per run."""
    heads = ("step", *(f"{one.predictor}, r = {one.ratio}" for one in errors))
    steps = zip(*(one.mse for one in errors), strict=True)
    rows = [(str(step), *("" if error is None else f"{error:.2e}" for error in row)) for step, row in enumerate(steps)]
    return Table.of_texts(heads, [row for row in rows if any(row[1:])])


def make_summary(errors: Sequence[PredictionErrors]) -> Table:
    """A row per run: the mean error right after a full step, over all skipped steps, and the largest."""
    heads = ("predictor", "r", "NFE", "MSE after a full step", "MSE", "largest MSE")
    rows = [
        (one.predictor, str(one.ratio), str(one.plan.count("F")), f"{one.first:.2e}", f"{one.mean:.2e}",
         f"{max(one.skipped):.2e}")
        for one in errors
    ]  # fmt: skip
    return Table.of_texts(heads, rows)


def plot_errors(errors: Sequence[PredictionErrors]) -> bytes:
    """MSE by step, an axis per ratio, as a PNG."""
    colours = ("#c9c9c9", "#1f4e79", "#e08a1e", "#b3432b")
    orders = list(dict.fromkeys(one.predictor for one in errors))
    figure, axes = make_figure(4.0)
    figure.clear()
    ratios = sorted({one.ratio for one in errors})
    for place, ratio in enumerate(ratios):
        axes = figure.add_subplot(1, len(ratios), place + 1)
        axes.set(title=f"r = {ratio}", xlabel="step", yscale="log", ylabel="" if place else "MSE of predictions")
        for one in (one for one in errors if one.ratio == ratio):
            points = [(step, error) for step, error in enumerate(one.mse) if error]
            axes.plot(*zip(*points, strict=True), ".-", color=colours[orders.index(one.predictor)], ms=3, linewidth=0.8,
                      label=one.predictor if place == 0 else None)  # fmt: skip
    figure.legend(loc="outside lower center", ncols=len(orders), frameon=False, fontsize=8)
    return encode_figure(figure)
