"""One run of a diffusers pipeline, its denoiser's output predicted at skipped steps."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.calls import Meter
from zeus_trt.runtime.pipelines.answers import Answer, Place, list_tensors, own, widen
from zeus_trt.runtime.pipelines.loop import Loop, decides
from zeus_trt.runtime.pipelines.schedule import read_grid
from zeus_trt.runtime.pipelines.side_effects import find_hooks, find_kept, find_new
from zeus_trt.runtime.steppers import Step
from zeus_trt.zeus_graph import Plan, Policy, Predictor
from zeus_trt.zeus_graph.policy import PolicyMaker
from zeus_trt.zeus_graph.policy_choice import choose_policy, settle_plan

Chooser = Callable[[], tuple[Plan, str]]


class PipelineRun:
    """A stepper that the pipeline feeds: it calls modules and ``scheduler.step`` in its own loop.

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
        make_policy: Makes the policies of a loop.
        on_step: Called with every step as it is done.
        on_call: Called after every call of a denoiser.
        denoisers: Names of modules that are known to be denoisers.
        hooks: Numbers of the hooks that were on the pipeline's modules before it ran; None if that is not known.
    """

    def __init__(
        self,
        make_policy: PolicyMaker | None = None,
        on_step: Callable[[Step], None] | None = None,
        on_call: Callable[[], None] | None = None,
        denoisers: set[str] | None = None,
        hooks: frozenset[int] | None = None,
    ):
        self._make_policy = make_policy or choose_policy(is_open=True)
        self._on_step, self._on_call, self._hooks = on_step, on_call, hooks
        self.denoisers = denoisers or set()
        self.keepers: set[str] = set()  # denoisers that keep more of each call than their output
        self.meter = Meter(self._tell_call)
        self.rule, self.reason = Predictor(), ""
        self.drift: list[tuple[int, torch.Tensor]] = []
        self.total_seconds = 0.0
        self._loop, self._done = Loop(), ""  # the letters of loops that ended
        self._observed: set[str] = set()
        self._latents: torch.Tensor | None = None
        self._began = 0.0
        self._is_paused = False

    @property
    def steps(self) -> str:
        """What happened so far, a letter per step."""
        loop = self._loop
        return self._done + (loop.plan.steps[: loop.index + (loop.stepped > 0)] if loop.plan else "")

    @property
    def row_plans(self) -> tuple[str, ...]:
        """What each row did, where a policy decides by row, in a run of one loop; else empty."""
        return () if self._done or not self._loop.policies else getattr(self._loop.policies[0], "row_plans", ())

    @property
    def letter(self) -> str:
        """The engine that the next call of a denoiser is for: ``F`` the full one, ``Q`` the quantized one."""
        plan, following = self._loop.plan, self._loop.index + (self._loop.stepped > 0)
        return "Q" if plan and plan.steps[following : following + 1] == "Q" else "F"

    def restart(self) -> None:
        """Begins another loop: the schedule was set again."""
        if not self._is_paused:
            self._loop, self._done = Loop(), self.steps

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
        self._loop.make_full(self._loop.index + (self._loop.stepped > 0))

    def finish(self) -> None:
        """Ends the run.

        Raises:
            ZeusError: An output was not finite.
        """
        if self._latents is not None:
            self.meter.finish(self._latents)  # waits for the device, for the clock too
            self._latents = None
            self.total_seconds = time.perf_counter() - self._began
        if self.meter.nfe and not self.meter.calls and self._loop.early:  # a single step
            self._learn([*self._loop.early][-1])

    def call(self, name: str, module: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Answers a call of a module.

        Args:
            name: The name of the module in the pipeline.
            module: Runs where the call cannot be answered from memory, with the other arguments.
        """
        if self._is_paused:
            return own(module(*args, **kwargs))
        self._began = self._began or time.perf_counter()
        loop = self._loop
        loop.begin_call()
        if name in loop.early and loop.plan and 0 < loop.index < len(loop.plan):
            self._learn(name)
        given = list_tensors((args, kwargs))
        shapes = tuple(tensor.shape for tensor in given)
        calls = loop.places if name in self.denoisers else loop.others
        place = Place(name, calls[name])
        if name in self.denoisers and not loop.places:
            self._welcome(name)
        calls[name] += 1
        if name in self.denoisers and (kept := self._recall(place, given, shapes)) is not None:
            return kept.value
        if name not in self.denoisers and not loop.index:
            loop.early[name] += 1
        answer = self._run(name, module, given, args, kwargs)
        loop.answers.keep(place, loop.index, shapes, answer)
        return answer

    def step(self, scheduler: Any, choose: Chooser, own_step: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Takes a step of the scheduler, with the denoiser's output or its prediction.

        Args:
            scheduler: The pipeline's.
            choose: Gives the plan of this run, and why it; called at the first step.
            own_step: Called with the arguments.
            arguments: By name: ``model_output``, ``timestep``, ``sample`` and whatever else.
        """
        if self._is_paused:
            return own_step(**arguments)
        loop = self._loop
        self._check_called()
        if loop.plan is None:
            plan, self.reason = choose()
            loop.plan = settle_plan(self._make_policy, plan)
            self.rule = loop.plan.rule
        if loop.stepped == len(loop.policies) and loop.index == 0:
            grid = read_grid(scheduler, arguments["timestep"], loop.plan)
            loop.add(self._make_policy(loop.plan, grid), arguments["sample"])
        if loop.index >= len(loop.plan) or loop.stepped >= len(loop.policies):
            raise ZeusError(
                f"pipeline: got step {loop.index + 1}, and {loop.stepped + 1} in one; expected {len(loop.plan)} and "
                f"{len(loop.policies)}, as its schedule and its first step say. "
                "It steps its scheduler in a way that is not supported: run it as it is."
            )
        policy = loop.policies[loop.stepped]
        if not decides(policy):
            policy.see(loop.index, widen(arguments["sample"]))
        output = self._choose_output(policy, arguments["model_output"])
        arguments["model_output"] = output
        loop.stepped += 1
        result = own_step(**arguments)
        self._latents = latents = result[0] if isinstance(result, tuple) else result.prev_sample
        loop.decide(policy, latents)
        if loop.index == len(loop.plan) - 1:
            self.finish()
        self.total_seconds = time.perf_counter() - self._began
        if self._on_step and loop.stepped == 1:
            timestep = float(torch.as_tensor(arguments["timestep"]).flatten()[0])
            with self.pause():
                self._on_step(Step(len(self.steps) - 1, loop.plan.steps[loop.index], timestep, latents, output))
        return result

    def _choose_output(self, policy: Policy, output: torch.Tensor) -> torch.Tensor:
        loop, step = self._loop, self._loop.index
        if not policy.is_full(step):
            if step > 1 and loop.places != loop.before:
                loop.make_full(step + 1)
            return policy.predict(step).to(output.dtype)
        taken = output.to(torch.promote_types(output.dtype, torch.float32), copy=True)
        drift = policy.take(step, taken)
        loop.follow(policy.plan)
        if drift is not None:
            self.drift.append((len(self._done) + step, drift))
        self.meter.check(len(self._done) + step, output)
        self.meter.nfe += loop.stepped == 0
        return taken.to(output.dtype)

    def _recall(self, place: Place, given: list[torch.Tensor], shapes: tuple[torch.Size, ...]) -> Answer | None:
        """The answer at a skipped step. Without one the step becomes full, or the next one."""
        loop = self._loop
        if loop.is_full:
            return None
        asks_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
        kept = None if asks_gradient else loop.answers.recall(place, loop.index, shapes)
        if kept is None:
            loop.make_full(loop.index + (loop.places.total() > 1))
        return kept

    def _run(
        self, name: str, module: Any, given: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        is_new = name in self.denoisers and name not in self._observed and isinstance(module, torch.nn.Module)
        before = find_kept(module) if is_new else {}
        device = given[0].device if given else torch.device("cpu")
        answer = self.meter.time(name + self.letter, device, module, *args, **kwargs)
        if is_new:
            has_hooks = self._hooks is not None and not find_hooks(module) <= self._hooks
            is_keeper = has_hooks or find_new(before, module, [*given, *list_tensors(answer)])
            (self.keepers.add if is_keeper else self.keepers.discard)(name)
            if self._loop.index:  # calls of the first step may fill caches
                self._observed.add(name)
        if name in self.denoisers:
            self.meter.count()
        return own(answer)

    def _tell_call(self) -> None:
        if self._on_call:
            with self.pause():
                self._on_call()

    def _learn(self, name: str) -> None:
        """Takes a module for a denoiser, and counts what it did before that was known."""
        self.denoisers.add(name)
        self.meter.count(self._loop.early.pop(name))

    def _check_called(self) -> None:
        """Refuses a step without a call; a module that is called alone between two steps is a denoiser."""
        loop = self._loop
        if loop.places or loop.stepped:
            return
        if not (names := [*loop.others]):
            raise ZeusError(
                "pipeline: got a step of its scheduler without a call of its denoiser; expected one before. It cannot "
                "be accelerated: run it as it is."
            )
        if not loop.index:
            return
        for name in names:
            self.denoisers.add(name)
            loop.places[name] = loop.others[name]
            self.meter.count(loop.others[name])
        self._welcome(names[0])
        loop.make_full(loop.index)

    def _welcome(self, name: str) -> None:
        """A denoiser is called first in a step; outputs of another than before form no line with the earlier ones."""
        loop = self._loop
        if loop.expert not in ("", name):
            loop.make_full(loop.index, loop.index + 1)
        loop.expert = name
        if self.keepers:
            loop.make_full(loop.index)
