"""Recording what a pipeline passes to its denoiser, through a proxy: the pipeline is not touched."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError
from zeus_trt.export.shape_probe import ShapeProbe
from zeus_trt.runtime.pipelines.arguments import bind, is_modular
from zeus_trt.runtime.pipelines.denoisers import check_loaded, check_single, find_denoisers, list_parts
from zeus_trt.runtime.pipelines.proxy import Proxy
from zeus_trt.runtime.pipelines.side_effects import unwrap
from zeus_trt.runtime.pipelines.stand_in import is_scheduler, is_stand_in

STEPS = 3


@dataclass(frozen=True)
class Call:
    """One call of the denoiser.

    Args:
        arguments: What was passed, by the name in the ``forward`` signature; tensors are copies.
        step: Calls of ``scheduler.step`` before it: the index of the step it belongs to.
        branch: Calls before it in the same step, such as 1 for the second branch of guidance.
        output_shape: Shape of the first output of the denoiser; of a list with a tensor per row, that of all rows.
        answer: All that it answered, with tensors on the ``meta`` device.
        time: The timestep that ``scheduler.step`` received in this step; None if the pipeline did not reach it.
    """

    arguments: Mapping[str, Any]
    step: int
    branch: int
    output_shape: tuple[int, ...]
    answer: Any = None
    time: float | None = None


class Enough(BaseException):  # no Exception: a pipeline must not catch it
    """Ends the pipeline when enough steps are recorded."""


class Probing(Proxy):
    """A proxy whose networks are not run: noise of the right shape and dtype is their answer.

    Args:
        pipeline: A diffusers pipeline, with its components on any device.
        parts: The modules whose calls are answered, by name; the others run as ever.
    """

    def __init__(self, pipeline: Any, parts: Mapping[str, torch.nn.Module]):
        self._parts = parts
        super().__init__(pipeline)

    def record(self, run: Callable[[Any], Any], seed: int | None = None) -> None:
        """Calls ``run`` with the proxy pipeline until ``Enough`` is raised.

        Args:
            run: Calls the pipeline that it is given.
            seed: Of torch's generator, whose state is afterwards what it was; None to leave it as it is.

        Raises:
            Exception: What the pipeline raises.
        """
        with torch.random.fork_rng(devices=[]), self.running(), _quiet():
            self._own["_progress_bar_config"] = {"disable": True}
            if is_modular(self._pipeline):
                self._own["_blocks"] = silence(self._pipeline.blocks)  # a copy
            if seed is not None:
                torch.manual_seed(seed)
            try:
                run(self.pipeline)
            except Enough:
                if hasattr(self._pipeline, "maybe_free_model_hooks"):
                    self._pipeline.maybe_free_model_hooks()  # a pipeline's own last act

    def replaces(self, name: str, part: Any) -> bool:
        """The given modules, and every scheduler."""
        return is_scheduler(part) or any(part is one for one in self._parts.values())

    def bind(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments of a call by their names in ``forward``."""
        return bind(inspect.signature(type(unwrap(module)).forward), module, *args, **kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the errors of blocks of modular pipelines out of the log: trying arguments makes some."""
    logger = logging.getLogger("diffusers.modular_pipelines")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def silence(blocks: Any) -> Any:
    """Blocks of a modular pipeline, and all in them, without progress bars."""
    blocks._progress_bar_config = {"disable": True}
    for part in getattr(blocks, "sub_blocks", {}).values():
        silence(part)
    return blocks


class Recorder(Probing):
    """The calls of one denoiser so far, and the step that the pipeline is at.

    Args:
        pipeline: The pipeline.
        component: Name of the denoiser.
        steps: How many steps to record.
        probe: Answers in the place of the denoiser.
    """

    def __init__(self, pipeline: Any, component: str, steps: int, probe: ShapeProbe | None = None):
        denoiser = find_denoiser(pipeline, component)
        self.calls: list[Call] = []
        self._wanted, self.denoiser = steps, denoiser
        self._probes = {id(denoiser): probe or ShapeProbe(denoiser)}
        self._step = self._branch = 0
        super().__init__(pipeline, {**find_denoisers(pipeline), component: denoiser})

    def answer(self, name: str, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes a call of the denoiser, and answers it with noise, and those of networks that run after it."""
        if module is not self.denoiser:
            if not self._branch:  # the denoiser may read what it answers
                return module(*args, **kwargs)
            if id(module) not in self._probes:
                self._probes[id(module)] = ShapeProbe(module)
            return self._probes[id(module)](self.bind(module, *args, **kwargs))
        arguments = self.bind(module, *args, **kwargs)
        copies = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), arguments)
        answer = self._probes[id(module)](arguments)
        shapes = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), answer)
        self.calls.append(Call(copies, self._step, self._branch, _measure_output(answer), shapes))
        self._branch += 1
        return answer

    def step(self, scheduler: Any, own_step: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Steps, and notes the time; ends the run after enough steps."""
        passed = torch.as_tensor(inspect.signature(own_step).bind(*args, **kwargs).arguments.get("timestep", ()))
        time = float(passed) if passed.numel() == 1 else None
        result = own_step(*args, **kwargs)
        self.calls[:] = [replace(call, time=time) if call.step == self._step else call for call in self.calls]
        self._step, self._branch = self._step + 1, 0
        if len({call.step for call in self.calls}) >= self._wanted:
            raise Enough
        return result


def _measure_output(answer: Any) -> tuple[int, ...]:
    first = next(iter(pytree.tree_leaves(answer, is_leaf=lambda part: isinstance(part, torch.Tensor | list))))
    return (len(first), *first[0].shape) if isinstance(first, list) else tuple(first.shape)


def record_calls(
    pipeline: Any, component: str, run: Callable[[Any], Any], steps: int = STEPS, probe: ShapeProbe | None = None
) -> list[Call]:
    """Records the calls of a denoiser.

    ``run`` is given a proxy of the pipeline, which ends the run once its denoiser was called in ``steps`` steps. The
    pipeline, its scheduler and its modules are not touched, and may run elsewhere at the same time; the random state
    of the CPU is afterwards what it was.

    Args:
        pipeline: A diffusers pipeline, with its components on any device.
        component: Name of the denoiser among the pipeline's components.
        run: Calls the pipeline that it is given.
        steps: How many steps to record.
        probe: One that answered for this denoiser before, to spare its start.

    Raises:
        ZeusError: The pipeline has no such denoiser, or did not call it.
        Exception: What the pipeline raises.
    """
    recorder = Recorder(pipeline, component, steps, probe)
    recorder.record(run)
    if not recorder.calls:
        raise ZeusError(
            f"component: got {component}, which the pipeline did not call; expected its denoiser. "
            "Name another one, or run enough steps to reach it."
        )
    return _complete(recorder.calls, inspect.signature(type(unwrap(recorder.denoiser)).forward))


def _complete(calls: Sequence[Call], signature: inspect.Signature) -> list[Call]:
    """The calls, with the defaults of what only some of them pass, such as one branch of guidance."""
    passed = {name for call in calls for name in call.arguments}
    defaults = {name: each.default for name, each in signature.parameters.items() if name in passed}
    return [
        replace(call, arguments={**call.arguments, **{n: defaults[n] for n in defaults if n not in call.arguments}})
        for call in calls
    ]


def find_denoiser(pipeline: Any, component: str) -> torch.nn.Module:
    """The pipeline's component of that name.

    Raises:
        ZeusError: The component is missing or not a module, or the pipeline has not one ``scheduler``.
    """
    check_solver(pipeline)
    modules = list_modules(pipeline)
    if component not in modules:
        raise ZeusError(
            f"component: got {component}; expected one of {', '.join(sorted(modules))}, the modules of this "
            f"{type(pipeline).__name__}. Choose its denoiser."
        )
    return modules[component]


def list_modules(pipeline: Any) -> dict[str, torch.nn.Module]:
    """The components of a pipeline that are modules."""
    return {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}


def check_pipeline(pipeline: Any) -> None:
    """Refuses anything but a plain diffusers pipeline with a loop.

    Raises:
        ZeusError: It lacks a scheduler or a denoiser, is made of other pipelines, or is accelerated.
    """
    kind = type(pipeline).__name__
    if is_stand_in(pipeline):
        raise ZeusError(f"pipeline: got a {kind} that is accelerated; expected what it was made of. Export that.")
    check_single(pipeline, "Export")
    check_loaded(pipeline)


def check_solver(pipeline: Any) -> None:
    """Refuses what ``check_pipeline`` does, and a pipeline whose loops have a scheduler each.

    Raises:
        ZeusError: It is one of these.
    """
    check_pipeline(pipeline)
    if getattr(pipeline, "scheduler", None) is None:
        names = ", ".join(name for name, part in list_parts(pipeline).items() if is_scheduler(part))
        raise ZeusError(
            f"pipeline: got a {type(pipeline).__name__} with {names}; expected one named scheduler, as a bundle has "
            "one solver. Accelerate the pipeline without an engine."
        )
