"""One run of a diffusers pipeline, its denoiser's output predicted at skipped steps."""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.calls import Stopwatch
from zeus_trt.runtime.drift import DriftController, insert_full
from zeus_trt.runtime.finite_guard import FiniteGuard
from zeus_trt.runtime.loop import Step
from zeus_trt.runtime.request import expect
from zeus_trt.zeus_graph import Predictor, StepController, StepPlan, choose_predictor
from zeus_trt.zeus_graph.trace import read_sigmas


@dataclass
class PipelineRun:
    """The state of one run: which step it is at, and what was put out before.

    The denoiser's calls up to the next ``scheduler.step`` belong to one step, however many they are: the branches of
    guidance, two experts, a ControlNet. At a skipped step they are answered by what was answered last, so that
    guidance with a memory is not led astray, and what the pipeline makes of it is replaced where it meets the
    scheduler: by the prediction from the outputs, after guidance, that the scheduler was given before. Where another
    expert takes over, its first two steps are full: outputs of two networks lie on no line. A schedule that is set
    again begins another loop, with a plan of its own.

    Args:
        choose_plan: Gives the plan for the number of evaluations, which the run tells at its first step.
        predictor: The rule that fills skipped steps; None for the plan's, else ``zeus``.
        on_step: Told every step as it is done.
        on_call: Called after every call of the denoiser.
        drift_threshold: As in ``Session.generate``.
        has_experts: Whether another network may take over.
    """

    choose_plan: Callable[[int], StepPlan]
    predictor: str | Predictor | None
    on_step: Callable[[Step], None] | None = None
    on_call: Callable[[], None] | None = None
    drift_threshold: float | None = None
    has_experts: bool = False
    plan: StepPlan | None = None
    rule: Predictor = field(default_factory=Predictor)
    drift: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    nfe: int = 0
    calls: int = 0
    total_seconds: float = 0.0
    _done: str = ""  # the letters of loops that ended
    _index: int = 0
    _began: float = 0.0
    _stepped: int = 0  # calls of scheduler.step since the last of the denoiser: several where there are modalities
    _places: Counter = field(default_factory=Counter)
    _answers: dict[tuple[str, int], tuple[list[torch.Size], Any]] = field(default_factory=dict)
    _controllers: list[StepController | DriftController] = field(default_factory=list)
    _expert: str = ""  # whom the step before called first
    _guard: FiniteGuard | None = None
    _watch: Stopwatch | None = None

    @property
    def steps(self) -> str:
        """What happened so far, a letter per step."""
        return self._done + (self.plan.steps[: self._index + 1] if self.plan else "")

    @property
    def engine_seconds(self) -> float:
        """Time inside the denoiser."""
        return self._watch.read() if self._watch else 0.0

    def restart(self) -> None:
        """Begins another loop: the schedule was set again."""
        if self.plan is None:
            return
        self._done, self.plan, self._index, self._stepped = self.steps, None, 0, 0
        self._expert = ""
        self._places.clear()
        self._answers.clear()
        self._controllers.clear()

    def call(self, name: str, denoiser: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Answers a call of the denoiser."""
        self._began = self._began or time.perf_counter()
        if self._stepped:
            self._index, self._stepped = self._index + 1, 0
            self._places.clear()
        if not self._places:
            self._welcome(name)
        place = name, self._places[name]
        self._places[name] += 1
        given = _tensors((args, kwargs))
        shapes = [tensor.shape for tensor in given]
        then, answer = self._answers.get(place, (None, None))
        if not self._is_full() and then == shapes:
            return pytree.tree_map_only(torch.Tensor, _copy, answer)
        self._watch = self._watch or Stopwatch(given[0].device if given else torch.device("cpu"))
        answer = self._watch.run(denoiser, *args, **kwargs)
        self.calls += 1
        if self.on_call:
            self.on_call()
        # Of several tensors, those of a ControlNet, none is read at a skipped step but by a denoiser that is skipped.
        keep = _copy if len(_tensors(answer)) == 1 else _blank
        self._answers[place] = shapes, pytree.tree_map_only(torch.Tensor, keep, answer)
        return answer

    def step(
        self, scheduler: Any, count: Callable[[], int], own_step: Callable[..., Any], arguments: dict[str, Any]
    ) -> Any:
        """Takes a step of the scheduler, with the denoiser's output or its prediction.

        Args:
            scheduler: The pipeline's.
            count: Gives the number of evaluations of this run.
            own_step: Called with the arguments.
            arguments: By name: ``model_output``, ``timestep``, ``sample`` and whatever else.
        """
        if not self._places and not self._stepped:
            raise ZeusError(
                "pipeline: got a step of its scheduler without a call of its denoiser; expected one before. It cannot "
                "be accelerated: run it as it is."
            )
        if self.plan is None:
            total = count()
            expect("plan", chosen := self.choose_plan(total), StepPlan, "a StepPlan from what makes it")
            self.plan, self.rule = chosen.check_length(total), choose_predictor(chosen, self.predictor)
        if self._stepped == len(self._controllers) and self._index == 0:
            grid = _read_grid(scheduler, arguments["timestep"], self.plan, self.rule)
            self._controllers.append(self._make_controller(grid))
        if self._index >= self.plan.num_steps or self._stepped >= len(self._controllers):
            raise ZeusError(
                f"pipeline: got step {self._index + 1}, and {self._stepped + 1} in one; expected "
                f"{self.plan.num_steps} and {len(self._controllers)}, as its schedule and its first step say. "
                "It steps its scheduler in a way that is not supported: run it as it is."
            )
        controller, output = self._controllers[self._stepped], arguments["model_output"]
        if controller.is_full(self._index):
            drift = controller.take(self._index, output.float() if output.dtype in _HALVES else output)
            if drift is not None:
                self.drift.append((len(self._done) + self._index, drift))
                self.plan = controller.plan
            self._guard = self._guard or FiniteGuard(output.device)
            self._guard.check(len(self._done) + self._index, output)
            self.nfe += self._stepped == 0
        else:
            output = arguments["model_output"] = controller.predict(self._index).to(output.dtype)
        self._stepped += 1
        result = own_step(**arguments)
        latents = result[0] if isinstance(result, tuple) else result.prev_sample
        if self._index == self.plan.num_steps - 1 and self._guard:
            self._guard.finish(latents)  # waits for the device, for the clock too
        self.total_seconds = time.perf_counter() - self._began
        if self.on_step and self._stepped == 1:
            time_ = float(torch.as_tensor(arguments["timestep"]).flatten()[0])
            self.on_step(Step(len(self.steps) - 1, self.plan.steps[self._index], time_, latents, output))
        return result

    def _make_controller(self, grid: list[float] | None) -> StepController | DriftController:
        assert self.plan is not None
        if self.drift_threshold is None and not self.has_experts:
            return StepController(self.plan, self.rule, grid)
        threshold = math.inf if self.drift_threshold is None else self.drift_threshold
        return DriftController(self.plan, self.rule, grid, threshold)

    def _welcome(self, name: str) -> None:
        if self.has_experts and self.plan and self._expert not in ("", name):
            for step in (self._index, self._index + 1):
                self.plan = insert_full(self.plan, step)
            for controller in self._controllers:
                controller.plan = self.plan
        self._expert = name

    def _is_full(self) -> bool:
        return self.plan is None or self._index >= self.plan.num_steps or self.plan.is_full(self._index)


_HALVES = (torch.float16, torch.bfloat16)


def count_evaluations(scheduler: Any, timestep: Any, told: int | None) -> int:
    """Evaluations from a first ``timestep`` on: what the pipeline tells, else to the end of the schedule."""
    return told or len(scheduler.timesteps) - _find_begin(scheduler, timestep)


def _find_begin(scheduler: Any, timestep: Any) -> int:
    begin = getattr(scheduler, "begin_index", None)
    if begin is not None:
        return begin
    timesteps = scheduler.timesteps.tolist()
    first = float(torch.as_tensor(timestep).flatten()[0])
    return timesteps.index(first) if first in timesteps else 0


def _read_grid(scheduler: Any, timestep: Any, plan: StepPlan, predictor: Predictor) -> list[float] | None:
    begin = _find_begin(scheduler, timestep)
    timesteps = [float(time_) for time_ in scheduler.timesteps[begin:].tolist()]
    sigmas = read_sigmas(scheduler, timesteps, begin) if predictor.abscissa == "sigma" else timesteps
    return None if sigmas is None else list(sigmas[: plan.num_steps])


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros like a tensor, in the memory of one number."""
    return tensor.new_zeros(()).expand(tensor.shape)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
