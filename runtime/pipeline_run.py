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
from zeus_trt.runtime.drift import DriftController, insert_full
from zeus_trt.runtime.finite_guard import FiniteGuard
from zeus_trt.runtime.loop import Step
from zeus_trt.zeus_graph import Predictor, StepController, StepPlan
from zeus_trt.zeus_graph.trace import read_sigmas


@dataclass
class PipelineRun:
    """The state of one run: which step it is at, and what was put out before.

    The denoiser's calls up to the next ``scheduler.step`` belong to one step, however many they are: the branches of
    guidance, two experts, a ControlNet. At a skipped step they are answered by zeros, and what the pipeline made of
    these is replaced where it meets the scheduler: by the prediction from the outputs, after guidance, that the
    scheduler was given before. Where another expert takes over, its first two steps are full: outputs of two networks
    lie on no line.

    Args:
        choose_plan: Gives the plan for the number of evaluations, which the run tells at its first step.
        predictor: The rule that fills skipped steps.
        on_step: Told every step as it is done.
        on_call: Called after every call of the denoiser.
        drift_threshold: As in ``Session.generate``.
        has_experts: Whether another network may take over.
    """

    choose_plan: Callable[[int], StepPlan]
    predictor: Predictor
    on_step: Callable[[Step], None] | None = None
    on_call: Callable[[], None] | None = None
    drift_threshold: float | None = None
    has_experts: bool = False
    plan: StepPlan | None = None
    drift: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    nfe: int = 0
    calls: int = 0
    engine_seconds: float = 0.0
    total_seconds: float = 0.0
    _index: int = 0
    _began: float = 0.0
    _stepped: int = 0  # calls of scheduler.step since the last of the denoiser: several where there are modalities
    _places: Counter = field(default_factory=Counter)
    _answers: dict[tuple[str, int], Any] = field(default_factory=dict)
    _controllers: list[StepController | DriftController] = field(default_factory=list)
    _expert: str = ""  # whom the step before called first
    _guard: FiniteGuard | None = None

    @property
    def steps(self) -> str:
        """What happened so far, a letter per step."""
        return self.plan.steps[: self._index + 1] if self.plan else ""

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
        if not self._is_full() and place in self._answers:
            return pytree.tree_map_only(torch.Tensor, _copy, self._answers[place])
        start = time.perf_counter()
        answer = denoiser(*args, **kwargs)
        self.engine_seconds += time.perf_counter() - start
        self.calls += 1
        if self.on_call:
            self.on_call()
        self._answers[place] = pytree.tree_map_only(torch.Tensor, _blank, answer)
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
        if self.plan is None:
            self.plan = self.choose_plan(count())
        if self._index >= self.plan.num_steps:
            raise ZeusError(
                f"pipeline: got step {self._index + 1}; expected {self.plan.num_steps}, the timesteps of its schedule. "
                "It steps its scheduler in a way that is not supported: run it as it is."
            )
        if self._stepped == len(self._controllers) and self._index == 0:
            self._controllers.append(self._make_controller(_read_grid(scheduler, self.plan, self.predictor)))
        controller, output = self._controllers[self._stepped], arguments["model_output"]
        if controller.is_full(self._index):
            drift = controller.take(self._index, output.float() if output.dtype in _HALVES else output)
            if drift is not None:
                self.drift.append((self._index, drift))
                self.plan = controller.plan
            self._guard = self._guard or FiniteGuard(output.device)
            self._guard.check(self._index, output)
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
            self.on_step(Step(self._index, self.plan.steps[self._index], time_, latents, output))
        return result

    def _make_controller(self, grid: list[float] | None) -> StepController | DriftController:
        assert self.plan is not None
        if self.drift_threshold is None and not self.has_experts:
            return StepController(self.plan, self.predictor, grid)
        threshold = math.inf if self.drift_threshold is None else self.drift_threshold
        return DriftController(self.plan, self.predictor, grid, threshold)

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
    timesteps = [float(time_) for time_ in scheduler.timesteps]
    begin = getattr(scheduler, "begin_index", None)
    if begin is None:
        first = float(torch.as_tensor(timestep).flatten()[0])
        begin = timesteps.index(first) if first in timesteps else 0
    return told or len(timesteps) - begin


def _read_grid(scheduler: Any, plan: StepPlan, predictor: Predictor) -> list[float] | None:
    begin = len(scheduler.timesteps) - plan.num_steps
    timesteps = [float(timestep) for timestep in scheduler.timesteps[begin:]]
    sigmas = read_sigmas(scheduler, timesteps, begin) if predictor.abscissa == "sigma" else timesteps
    return None if sigmas is None else list(sigmas)


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros like a tensor, in the memory of one number."""
    return tensor.new_zeros(()).expand(tensor.shape)


def _copy(blank: torch.Tensor) -> torch.Tensor:
    return blank.clone(memory_format=torch.contiguous_format)
