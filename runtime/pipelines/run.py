"""One run of a diffusers pipeline, its denoiser's output predicted at skipped steps."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.calls import Stopwatch
from zeus_trt.runtime.drift import DriftController, insert_full
from zeus_trt.runtime.finite_guard import FiniteGuard
from zeus_trt.runtime.pipelines.answers import Answer, Answers, Place, list_tensors, own
from zeus_trt.runtime.pipelines.schedule import read_grid
from zeus_trt.runtime.pipelines.side_effects import find_hooks, find_kept, find_new
from zeus_trt.runtime.request import expect
from zeus_trt.runtime.steppers import Step
from zeus_trt.zeus_graph import Plan, Predictor, StepController, choose_predictor

_HALVES = (torch.float16, torch.bfloat16)


@dataclass
class PipelineRun:
    """The state of one run.

    The calls of modules up to the next ``scheduler.step`` belong to one step, however many they are: the branches of
    guidance, two experts, a ControlNet. At a skipped step they are answered by what was answered last, so that
    guidance with a memory sees plausible outputs, and what the pipeline makes of it is replaced where it meets the
    scheduler: by the prediction from the outputs, after guidance, that the scheduler was given before. Where another
    expert takes over, or the output gets another shape, the first two steps are full: outputs of two networks, or of
    two batches, form no line. A schedule that is set again begins another loop with another plan.

    A module is a denoiser if it is known to be one, or if it is called before the first step and between the next two.
    Any other module runs whenever it is called, and is not counted: text encoders, decoders of previews. A skipped step
    becomes full where its first call cannot be answered: it was not made at the step before, it has other shapes, a
    gradient is asked for, or the pipeline may read more of the module than its output.

    Args:
        choose_plan: Makes the plan for the number of evaluations, which is known at the first step.
        predictor: The rule that fills skipped steps; None for the plan's, else ``zeus``.
        on_step: Called with every step as it is done.
        on_call: Called after every call of a denoiser.
        drift_threshold: As in ``Session.generate``.
        denoisers: Names of modules that are known to be denoisers.
        hooks: Numbers of the hooks that were on the pipeline's modules before it ran; None if that is not known.
    """

    choose_plan: Callable[[int], Plan]
    predictor: str | Predictor | None
    on_step: Callable[[Step], None] | None = None
    on_call: Callable[[], None] | None = None
    drift_threshold: float | None = None
    denoisers: set[str] = field(default_factory=set)
    hooks: frozenset[int] | None = None
    plan: Plan | None = None
    rule: Predictor = field(default_factory=Predictor)
    drift: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    nfe: int = 0
    calls: int = 0
    total_seconds: float = 0.0
    keepers: set[str] = field(default_factory=set)  # denoisers that keep more of each call than their output
    _done: str = ""  # the letters of loops that ended
    _index: int = 0
    _began: float = 0.0
    _stepped: int = 0  # calls of scheduler.step since the last of the denoiser: several where there are modalities
    _places: Counter = field(default_factory=Counter)  # calls of each denoiser in this step
    _before: Counter = field(default_factory=Counter)  # in the step before
    _others: Counter = field(default_factory=Counter)  # calls of other modules in this step
    _early: Counter = field(default_factory=Counter)  # of other modules in the first step
    _observed: set[str] = field(default_factory=set)
    _answers: Answers = field(default_factory=Answers)
    _controllers: list[StepController | DriftController] = field(default_factory=list)
    _expert: str = ""  # whom the step before called first
    _shapes: dict[int, torch.Size] = field(default_factory=dict)  # of the last output of each controller
    _since: int = 0  # the step at which outputs got these shapes
    _latents: torch.Tensor | None = None
    _guard: FiniteGuard | None = None
    _watches: dict[str, Stopwatch] = field(default_factory=dict)
    _is_paused: bool = False

    @property
    def steps(self) -> str:
        """What happened so far, a letter per step."""
        return self._done + (self.plan.steps[: self._index + (self._stepped > 0)] if self.plan else "")

    @property
    def engine_seconds(self) -> float:
        """Time inside the denoisers."""
        return sum(watch.read() for name, watch in self._watches.items() if name in self.denoisers)

    def restart(self) -> None:
        """Begins another loop: the schedule was set again."""
        if self._is_paused:
            return
        self._places, self._before, self._others, self._early = (Counter() for _ in range(4))
        if self.plan is None:
            return
        self._done, self.plan, self._index, self._stepped = self.steps, None, 0, 0
        self._expert = ""
        self._answers = Answers()
        self._controllers.clear()
        self._shapes.clear()
        self._since = 0

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Code of the user runs, such as a callback: modules and schedulers that it calls run, and are not counted."""
        was, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = was

    def expect_change(self) -> None:
        """Makes the next step full: the inputs of its denoiser have other shapes than before."""
        self._make_full(self._index + (self._stepped > 0))

    def finish(self) -> None:
        """Ends the run.

        Raises:
            ZeusError: An output was not finite.
        """
        if self._guard and self._latents is not None:
            self._guard.finish(self._latents)  # waits for the device, for the clock too
            self._latents = None
            self.total_seconds = time.perf_counter() - self._began
        if self.nfe and not self.calls and self._early:  # a single step
            self._learn([*self._early][-1])

    def call(self, name: str, module: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Answers a call of a module.

        Args:
            name: The name of the module in the pipeline.
            module: Runs where the call cannot be answered from memory, with the other arguments.
        """
        if self._is_paused:
            return own(module(*args, **kwargs))
        self._began = self._began or time.perf_counter()
        if self._stepped:
            self._index, self._stepped = self._index + 1, 0
            self._before, self._places = self._places, Counter()
            self._others.clear()
        if name in self._early and self.plan and 0 < self._index < len(self.plan):
            self._learn(name)
        given = list_tensors((args, kwargs))
        shapes = tuple(tensor.shape for tensor in given)
        calls = self._places if name in self.denoisers else self._others
        place = Place(name, calls[name])
        if name in self.denoisers:
            if not self._places:
                self._welcome(name)
            if (kept := self._recall(place, given, shapes)) is not None:
                calls[name] += 1
                return kept.value
        elif not self._index:
            self._early[name] += 1
        calls[name] += 1
        answer = self._run(name, module, given, args, kwargs)
        self._answers.keep(place, self._index, shapes, answer)
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
        if self._is_paused:
            return own_step(**arguments)
        self._check_called()
        if self.plan is None:
            total = count()
            expect("plan", chosen := self.choose_plan(total), Plan, "a Plan from what makes it")
            self.plan, self.rule = chosen.check_length(total), choose_predictor(chosen, self.predictor)
        if self._stepped == len(self._controllers) and self._index == 0:
            grid = read_grid(scheduler, arguments["timestep"], self.plan, self.rule)
            self._controllers.append(self._make_controller(grid))
        if self._index >= len(self.plan) or self._stepped >= len(self._controllers):
            raise ZeusError(
                f"pipeline: got step {self._index + 1}, and {self._stepped + 1} in one; expected "
                f"{len(self.plan)} and {len(self._controllers)}, as its schedule and its first step say. "
                "It steps its scheduler in a way that is not supported: run it as it is."
            )
        output = self._choose_output(self._controllers[self._stepped], arguments["model_output"])
        arguments["model_output"] = output
        self._stepped += 1
        result = own_step(**arguments)
        self._latents = latents = result[0] if isinstance(result, tuple) else result.prev_sample
        if self._index == len(self.plan) - 1:
            self.finish()
        self.total_seconds = time.perf_counter() - self._began
        if self.on_step and self._stepped == 1:
            time_ = float(torch.as_tensor(arguments["timestep"]).flatten()[0])
            with self.pause():
                self.on_step(Step(len(self.steps) - 1, self.plan.steps[self._index], time_, latents, output))
        return result

    def _choose_output(self, controller: StepController | DriftController, output: torch.Tensor) -> torch.Tensor:
        assert self.plan is not None
        if not controller.is_full(self._index):
            if self._index > 1 and self._places != self._before:
                self._make_full(self._index + 1)
            return controller.predict(self._index).to(output.dtype)
        if self._shapes.setdefault(self._stepped, output.shape) != output.shape:
            self._shapes[self._stepped], self._since = output.shape, self._index
            self._make_full(self._index + 1)
        drift = controller.take(self._index, output.float() if output.dtype in _HALVES else output)
        if drift is not None:
            self.drift.append((len(self._done) + self._index, drift))
            self.plan = controller.plan
            for other in self._controllers:
                other.plan = self.plan
        self._guard = self._guard or FiniteGuard(output.device)
        self._guard.check(len(self._done) + self._index, output)
        self.nfe += self._stepped == 0
        return output

    def _recall(self, place: Place, given: list[torch.Tensor], shapes: tuple[torch.Size, ...]) -> Answer | None:
        """The answer at a skipped step. Without one the step becomes full, or the next one."""
        if self._is_full():
            return None
        asks_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        kept = None if asks_gradient else self._answers.recall(place, self._index, shapes)
        if kept is None:
            self._make_full(self._index + bool(self._places))
        return kept

    def _run(
        self, name: str, module: Any, given: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name not in self._watches:
            self._watches[name] = Stopwatch(given[0].device if given else torch.device("cpu"))
        is_new = name in self.denoisers and name not in self._observed and isinstance(module, torch.nn.Module)
        before = find_kept(module) if is_new else {}
        answer = self._watches[name].run(module, *args, **kwargs)
        if is_new:
            has_hooks = self.hooks is not None and not find_hooks(module) <= self.hooks
            is_keeper = has_hooks or find_new(before, module, [*given, *list_tensors(answer)])
            (self.keepers.add if is_keeper else self.keepers.discard)(name)
            if self._index:  # calls of the first step may fill caches
                self._observed.add(name)
        if name in self.denoisers:
            self._count()
        return own(answer)

    def _count(self, calls: int = 1) -> None:
        for _ in range(calls):
            self.calls += 1
            if self.on_call:
                with self.pause():
                    self.on_call()

    def _learn(self, name: str) -> None:
        """Takes a module for a denoiser, and counts what it did before that was known."""
        self.denoisers.add(name)
        self._count(self._early.pop(name))

    def _check_called(self) -> None:
        """Refuses a step without a call; a module that is called alone between two steps is a denoiser."""
        if self._places or self._stepped:
            return
        if not (names := [*self._others]):
            raise ZeusError(
                "pipeline: got a step of its scheduler without a call of its denoiser; expected one before. It cannot "
                "be accelerated: run it as it is."
            )
        for name in names if self._index else ():
            self.denoisers.add(name)
            self._places[name] = self._others[name]
            self._count(self._others[name])
        if self._index:
            self._welcome(names[0])
            self._make_full(self._index)

    def _make_controller(self, grid: list[float] | None) -> StepController | DriftController:
        assert self.plan is not None
        if self.rule.table is not None and self.drift_threshold is None:
            return StepController(self.plan, self.rule, grid)
        controller = DriftController(self.plan, self.rule, grid, self.drift_threshold)
        self.rule.rows(self.plan, grid)  # refuses a plan that the rule cannot fill, before anything is skipped
        return controller

    def _welcome(self, name: str) -> None:
        if self._expert not in ("", name):
            self._make_full(self._index)
            self._make_full(self._index + 1)
        self._expert = name
        row = (self.rule.table or {}).get(self._index, {})
        if self.keepers or any(source < self._since for source in row):
            self._make_full(self._index)

    def _make_full(self, step: int) -> None:
        if self.plan is None or step >= len(self.plan) or self.plan.is_full(step):
            return
        if self.rule.table is None:
            self.plan = insert_full(self.plan, step)
        else:  # the rows of the steps after it stay as they are
            self.plan = Plan(f"{self.plan.steps[:step]}F{self.plan.steps[step + 1 :]}")
        for controller in self._controllers:
            controller.plan = self.plan

    def _is_full(self) -> bool:
        return self.plan is None or self._index >= len(self.plan) or self.plan.is_full(self._index)
