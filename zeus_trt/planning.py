"""What `zeus-trt plan` shows: a plan, alone or on a solver."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan, SamplingProgram, SolverProgram, choose_plan, fold, load_plan, trace
from zeus_trt.zeus_graph.plan_choice import is_for_any_length, lay_plan

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_STEPS = 50


@dataclass(frozen=True)
class Planned:
    """A plan, and the solver and program that it was laid on, if any."""

    plan: Plan
    solver: SolverProgram | None
    program: SamplingProgram | None

    def describe(self, with_program: bool = False) -> str:
        """The plan for a person, with the program's arithmetic on request."""
        return self.plan.describe() + (f"\n{self.program.describe()}" if with_program and self.program else "")

    def to_json(self, with_program: bool = False) -> dict[str, Any]:
        """The plan as JSON data, with the program on request."""
        program = {"program": self.program.to_json()} if with_program and self.program else {}
        return {**self.plan.to_json(), "full_steps": self.plan.full_steps, "nfe": self.plan.nfe, **program}

    def draw(self) -> "Image.Image":
        """A strip of full, extrapolated and reused steps over the solver's sigmas (over the steps without a solver)."""
        import io

        from PIL import Image

        from zeus_trt.evaluation.plots import COLOURS, add_legend, encode_figure, make_figure

        sigmas = self.solver.sigmas if self.solver else None
        grid = list(sigmas or range(len(self.plan)))
        figure, axes = make_figure(height=1.9, width=10)
        axes.vlines(grid, 0, 1, colors=[COLOURS[kind] for kind in self.plan.steps], linewidth=3.5)
        axes.set(yticks=[], ylim=(0, 1), xlabel="sigma" if sigmas else "step")
        if sigmas:
            axes.set_xscale("log" if min(grid) > 0 and max(grid) > 4 else "linear")
            axes.invert_xaxis()
        axes.spines["left"].set_visible(False)
        axes.set_title(f"{self.plan.nfe} of {len(self.plan)} steps full", loc="left", fontsize=10, pad=8)
        add_legend(figure, fontsize=9)
        return Image.open(io.BytesIO(encode_figure(figure, dpi=120))).convert("RGB")


def make_plan(
    steps: int | None = None,
    ratio: int | None = None,
    window: str | None = None,
    preset: str | None = None,
    nfe: int | None = None,
    text: str | None = None,
    scheduler: Path | None = None,
    predictor: str | None = None,
) -> Planned:
    """Makes a plan from what the command line gives.

    Args:
        steps: Solver steps, 50 by default; evaluations of the denoiser where there is no scheduler.
        ratio: Skipped steps after each full one; 3 by default.
        window: Name of a window, or two fractions such as ``0.2,0.1``; ``default`` by default.
        preset: ``medium``, ``fast`` or ``turbo``, instead of ``ratio``.
        nfe: Spread this many full steps evenly, instead of ``ratio``.
        text: The plan itself as ``load_plan`` takes it, instead of all of these.
        scheduler: Config of a diffusers scheduler, a file or its folder, to lay the plan on.
        predictor: The rule that fills skipped steps of the program; by default a calibrated plan's own, else ``zeus``.

    Raises:
        ZeusError: An invalid plan, two of the ways to give one, a missing scheduler, or one that is not linear.
    """
    _check_one(plan=text, nfe=nfe, ratio=ratio, preset=preset)
    _check_one(plan=text, window=window)
    _check_one(nfe=nfe, window=window)
    make = choose_plan(text, ratio, window, preset, predictor)
    written = None if text is None or is_for_any_length(text) else load_plan(text)
    if steps is None:
        steps = len(written) if written and not scheduler else DEFAULT_STEPS
    solver = trace(_load(scheduler), steps) if scheduler else None
    count = solver.num_evaluations if solver else steps
    plan = (
        lay_plan(make, count, lambda: _expect(solver))
        if nfe is None
        else Plan.spread(count, nfe).with_predictor(predictor)
    )
    return Planned(plan, solver, fold(solver, plan) if solver else None)


def _expect(solver: SolverProgram | None) -> SolverProgram:
    if solver is None:
        raise ZeusError("scheduler: got nothing for a plan of the prior; expected the config of its solver. Give one.")
    return solver


def _check_one(**asked: Any) -> None:
    given = [name for name, value in asked.items() if value is not None]
    if len(given) > 1:
        raise ZeusError(
            f"{given[0]}: got it beside {given[1]}; expected one of {', '.join(asked)}. Leave the other out."
        )


def _load(path: Path) -> Any:
    from zeus_trt.runtime.scheduler import load_scheduler

    file = path / "scheduler_config.json" if path.is_dir() else path
    if not file.is_file():
        raise ZeusError(f"scheduler: got {path}; expected a scheduler_config.json, or its folder. Give another path.")
    return load_scheduler(file)
