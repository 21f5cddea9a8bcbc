"""A diffusers pipeline and prompts, sampled by number."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.evaluation.guidance_range import read_scale, take_scale
from zeus_trt.evaluation.workload import Sample, Workload
from zeus_trt.runtime import Bundle, Denoiser, Session, Step, accelerate
from zeus_trt.runtime.noise import check_memory
from zeus_trt.runtime.pipelines.arguments import is_modular, list_parameters
from zeus_trt.runtime.pipelines.denoisers import find_denoisers
from zeus_trt.runtime.pipelines.weights_digest import digest_weights
from zeus_trt.runtime.scheduler import make_scheduler
from zeus_trt.zeus_graph import Plan, SolverProgram, json_file, trace
from zeus_trt.zeus_graph.plan_choice import Planner

EAGER = "eager"
_SMALLEST = 8  # pixels of a side, where none is asked for


class PipelineWorkload(Workload):
    """A pipeline whose runs are accelerated: text encoders, loop and decoder are its own.

    Args:
        pipeline: A diffusers pipeline; it is not touched.
        prompts: One per sample, in turn; labels for a pipeline of class labels, nothing for one without content.
        arguments: More arguments of its ``__call__``, such as ``guidance_scale``, ``height`` and ``negative_prompt``.
            Of a range of guidance scales each sample takes its own: it runs alone.
        seed: Sample k draws its noise from seed + k.
        bundle: A bundle of the pipeline, for the backends other than ``eager``; its adapter is in its engines alone.

    ``engines`` are opened engines by backend; those of the bundle are opened when they are run first.
    """

    def __init__(
        self,
        pipeline: Any,
        prompts: Sequence[Any],
        arguments: Mapping[str, Any] | None = None,
        seed: int = 0,
        bundle: Bundle | None = None,
    ):
        self.pipeline = pipeline
        self.prompts = list(prompts)
        self.arguments = dict(arguments or {})
        if "guidance_scale" in self.arguments:
            self.arguments["guidance_scale"] = read_scale(self.arguments["guidance_scale"])
        self.seed = seed
        self.bundle = bundle
        self.engines: dict[str, Denoiser] = {}
        self._sessions: dict[str, Session] = {}
        self._checked: set[str] = set()
        self._schedules: dict[tuple[int, str], tuple[int, dict[str, Any]]] = {}
        self._takes = list_parameters(pipeline)

    @property
    def makes_videos(self) -> bool:
        """Whether its samples have frames."""
        return "num_frames" in self._takes

    @property
    def parts(self) -> dict[str, torch.nn.Module]:
        """Its modules by name, but for the denoisers: text encoders, decoder. What takes time outside of the loop."""
        denoisers = find_denoisers(self.pipeline).values()
        modules = {name: part for name, part in self.pipeline.components.items() if isinstance(part, torch.nn.Module)}
        return {name: part for name, part in modules.items() if not any(part is denoiser for denoiser in denoisers)}

    @property
    def _adapter(self) -> Any:
        return self.bundle.adapter if self.bundle else None

    @cached_property
    def _weights_sha256(self) -> str:
        return digest_weights(next(iter(find_denoisers(self.pipeline).values())))[0]

    def open(self, backend: str) -> str:
        """The name of an engine; ``auto`` is ``eager`` without a bundle. It is opened when it is run first."""
        return EAGER if backend == "auto" and self.bundle is None else backend

    def describe(self) -> dict[str, Any]:
        own = self._takes.get("guidance_scale")
        return {
            "model": str(getattr(self.pipeline, "name_or_path", "") or type(self.pipeline).__name__),
            "weights_sha256": self._weights_sha256,
            "prompts": self.prompts,
            "arguments": {name: _describe(value) for name, value in self.arguments.items()},
            "guidance_scale": json_file.plain(self.arguments.get("guidance_scale", own.default if own else 1.0)),
            "seed": self.seed,
            **({"adapter": self._adapter.name} if self._adapter else {}),
        }

    def program(self, num_steps: int, solver: str = "default") -> SolverProgram:
        """The solver traced on the schedule that the pipeline sets, found by a run of two full steps."""
        total, schedule = self._find_schedule(num_steps, solver)
        left_out = ("num_inference_steps", "device")
        own = {name: value for name, value in schedule.items() if name not in left_out and value is not None}
        scheduler = self._scheduler(solver)
        whole = trace(scheduler, num_steps, **own)
        begin = whole.num_evaluations - total
        return trace(scheduler, num_steps, begin=begin, **own) if begin else whole

    def count_evaluations(self, num_steps: int, solver: str = "default") -> int:
        return self._find_schedule(num_steps, solver)[0]  # fewer where a run begins in the middle of the schedule

    def sample(
        self,
        plan: Plan | Planner | None,
        numbers: Sequence[int],
        *,
        num_steps: int = 50,
        solver: str = "default",
        backend: str = EAGER,
        mode: str = "auto",
        on_step: Callable[[Step], None] | None = None,
        **options: Any,
    ) -> Sample:
        """Makes the samples of these numbers, as one batch; ``options`` are those of ``accelerate``.

        Raises:
            ZeusError: A backend without a bundle, another mode than the pipeline's own loop, arguments that the
                pipeline refuses, and as ``accelerate``.
        """
        if mode not in ("auto", "step"):
            raise ZeusError(
                f"mode: got {mode!r} for a pipeline, which has its own loop; expected auto or step. Change it."
            )
        last: list[torch.Tensor] = []

        def note(step: Step) -> None:
            last[:] = [step.latents]
            if on_step:
                on_step(step)

        acceleration = accelerate(
            self.pipeline, plan=plan, scheduler=self._scheduler(solver), on_step=note,
            engine=None if backend == EAGER else self._open(backend), check=backend not in self._checked,
            adds_adapter=backend != EAGER and self._adapter is not None, **options,
        )  # fmt: skip
        with acceleration as fast, self._explain(num_steps):
            output = fast(**self._ask(numbers, num_steps), **self._name_output())
        self._checked.add(backend)
        self._schedules[num_steps, solver] = len(fast.report.plan), fast.schedule
        latents = last[0].float().cpu()
        return Sample(latents, read_images(output if is_modular(self.pipeline) else output[0], latents), fast.report)

    def _name_output(self) -> dict[str, Any]:
        """The argument by which the pipeline returns its pictures alone."""
        if not is_modular(self.pipeline):
            return {"return_dict": False}
        names = [output.name for output in self.pipeline.blocks.outputs]
        return {"output": next((name for name in ("images", "videos") if name in names), names[-1])}

    def _ask(self, numbers: Sequence[int], num_steps: int) -> dict[str, Any]:
        asked = {"num_inference_steps": num_steps, **self.arguments}
        if "guidance_scale" in asked:
            asked["guidance_scale"] = take_scale(asked["guidance_scale"], numbers)
        sides = (asked.get("height", _SMALLEST), asked.get("width", _SMALLEST))
        check_memory("pictures", (len(numbers), asked.get("num_frames", 1), 3, *sides))
        own = [self.prompts[number % len(self.prompts)] if self.prompts else None for number in numbers]
        content = {"class_labels" if "class_labels" in self._takes else "prompt": own}
        asked |= content if self.prompts else {"batch_size": len(own)}
        if isinstance(asked.get("negative_prompt"), str):
            asked["negative_prompt"] = [asked["negative_prompt"]] * len(own)
        if "image" in asked and "strength" in self._takes:  # image to image takes one each
            asked["image"] = [asked["image"]] * len(own)
        elif "image" in asked and self.makes_videos and len(own) > 1:
            raise ZeusError(
                f"image: got it for {len(own)} samples of a {type(self.pipeline).__name__}; expected one video at a "
                "time. Ask for one."
            )
        asked["generator"] = [torch.Generator().manual_seed(self.seed + number) for number in numbers]
        if "output_type" in self._takes and "output_type" not in asked:
            asked["output_type"] = "pt" if getattr(self.pipeline, "vae", None) is not None else "latent"
        return asked

    @contextmanager
    def _explain(self, num_steps: int) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, RuntimeError, LookupError, MemoryError) as error:  # for arguments, in diffusers
            strength = self.arguments.get("strength", 1.0)
            if strength * num_steps < 1:
                raise ZeusError(
                    f"strength: got {strength:g} of {num_steps} steps, which leaves none; expected at least "
                    f"{math.ceil(1000 / num_steps) / 1000:g}. Raise it, or the steps."
                ) from error
            raise ZeusError(
                f"pipeline: got arguments that a {type(self.pipeline).__name__} refuses ({say_cause(error)}); expected "
                "such that it runs. Change them."
            ) from error

    def _find_schedule(self, num_steps: int, solver: str) -> tuple[int, dict[str, Any]]:
        if (num_steps, solver) not in self._schedules:

            def plan(total: int) -> Plan:
                return Plan("F" + "R" * (total - 2) + "F" * (total > 1))

            with (
                accelerate(self.pipeline, plan=plan, predictor="reuse", scheduler=self._scheduler(solver)) as fast,
                self._explain(num_steps),
            ):
                asked = self._ask([0], num_steps)
                fast(**{**asked, **({"output_type": "latent"} if "output_type" in asked else {})})
            self._schedules[num_steps, solver] = len(fast.report.plan), fast.schedule
        return self._schedules[num_steps, solver]

    def _scheduler(self, solver: str) -> Any:
        if (own := getattr(self.pipeline, "scheduler", None)) is None:
            raise ZeusError(
                f"pipeline: got a {type(self.pipeline).__name__} without a part named scheduler; expected one, "
                "as its steps are compared. Accelerate it without a comparison."
            )
        return own if solver == "default" else make_scheduler({**own.config, "_class_name": type(own).__name__}, solver)

    def _open(self, backend: str) -> Session:
        if self.bundle is None:
            raise refuse_backend(backend)
        if backend not in self._sessions:
            engine = self.engines.get(backend)
            self._sessions[backend] = Session(self.bundle, engine=engine, backend="auto" if engine else backend)
        return self._sessions[backend]


def refuse_backend(backend: str) -> ZeusError:
    """What another backend than ``eager`` is answered with for a pipeline without a bundle."""
    return ZeusError(
        f"backend: got {backend} for a pipeline alone; expected eager, or a bundle of the pipeline as well. Export it, "
        "and give the bundle."
    )


def read_images(output: Any, latents: torch.Tensor) -> torch.Tensor:
    """A pipeline's pictures, or frames, as (batch, [frames,] channels, height, width) in -1..1.

    Args:
        output: What it gives: a tensor or an array in 0..1, or pictures; a pipeline without a decoder gives latents.
        latents: The final latents, returned where there are no pictures; clipped.
    """
    if isinstance(output, torch.Tensor):
        images = output.detach().float().cpu()
        return latents.clamp(-1, 1) if images.shape == latents.shape else (2 * images - 1).clamp(-1, 1)
    array = np.stack([np.asarray(picture, dtype=np.float32) for picture in output])
    if not isinstance(output, np.ndarray):  # pictures in 0..255
        array /= 255
    return torch.from_numpy(2 * array - 1).movedim(-1, -3)


def _describe(value: Any) -> Any:
    if isinstance(value, tuple):  # a range of guidance scales
        return json_file.plain(value)
    return value if isinstance(value, str | int | float | bool | None) else type(value).__name__
