"""A bundle made ready to run."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle import Bundle
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.engines import open_engine
from zeus_trt.runtime.guidance import ClassifierFreeGuidance
from zeus_trt.runtime.loop import Step, run_steps
from zeus_trt.runtime.noise import draw_noise
from zeus_trt.runtime.program import ProgramLoop
from zeus_trt.runtime.solver import Solver
from zeus_trt.zeus_graph import Predictor, StepPlan


@dataclass(frozen=True)
class Report:
    """What a trajectory did.

    Args:
        backend: Name of the engine.
        mode: ``program`` or ``step``.
        mode_reason: Why.
        plan: The step plan as a string.
        predictor: Name of the predictor.
        nfe: How often the engine was called, counted at the engine.
        engine_seconds: Time inside the engine.
        total_seconds: Time of the whole trajectory.
        speedup_bound: Evaluations / NFE: no speed-up can be larger.
    """

    backend: str
    mode: str
    mode_reason: str
    plan: str
    predictor: str
    nfe: int
    engine_seconds: float
    total_seconds: float
    speedup_bound: float


@dataclass(frozen=True)
class Result:
    """Final latents, float32 (batch, ...), and the report of their trajectory."""

    latents: torch.Tensor
    report: Report


class Session:
    """An engine and the solver of a bundle; trajectories share nothing but the engine.

    Args:
        bundle: A folder written by ``zeus-trt export``, or an opened ``Bundle``.
        engine: A denoiser to use instead of one of the bundle's own.
        scheduler: A diffusers scheduler to use instead of the checkpoint's.
        backend: ``onnxruntime``, or an engine that ``zeus-trt build`` made: ``aot-inductor``, ``tensorrt``,
            ``tensorrt-rtx``.

    Raises:
        ZeusError: The bundle is incomplete or changed, or a library is missing.
    """

    def __init__(
        self,
        bundle: str | Path | Bundle,
        *,
        engine: Denoiser | None = None,
        scheduler: Any = None,
        backend: str = "onnxruntime",
    ):
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self.engine = engine or open_engine(self.bundle, backend)
        self.solver = Solver(self.bundle, scheduler)

    def plan(self, num_steps: int, ratio: int) -> StepPlan:
        """The uniform plan of ``num_steps`` solver steps with ``ratio`` skipped steps after each full one."""
        return StepPlan.uniform(self.solver.count_evaluations(num_steps), ratio)

    def sample(
        self,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        *,
        plan: StepPlan,
        num_steps: int = 50,
        batch: int = 1,
        guidance_scale: float = 1.0,
        seed: int | Sequence[int] = 0,
        predictor: str | Predictor = "zeus",
        noise: torch.Tensor | None = None,
        negative: Mapping[str, torch.Tensor] | None = None,
    ) -> Iterator[Step]:
        """Runs one trajectory, a step at a time.

        Args:
            conditioning: Constant inputs of the denoiser by name, of the shapes that the manifest says.
            plan: What happens at each evaluation.
            num_steps: Solver steps.
            batch: Number of images, where neither conditioning nor noise tells it.
            guidance_scale: Classifier-free guidance; 1 turns it off.
            seed: Of the initial noise; or one of each row, which then has the same noise in every batch.
            predictor: The rule that fills skipped steps.
            noise: Standard normal noise (batch, ...) instead of the seed's; needed where the size may vary.
            negative: Conditioning of the unconditional rows of guidance, by name; for models with class
                labels the null class by default.

        Raises:
            ZeusError: A plan of the wrong length, or conditioning that does not fit the model.
        """
        task = self._prepare(self.engine, conditioning, batch, guidance_scale, seed, noise, negative)
        return run_steps(scheduler=self.solver.scheduler, plan=plan, num_steps=num_steps, predictor=predictor, **task)

    def label_images(self, labels: Sequence[int] | None, num_images: int) -> dict[str, torch.Tensor]:
        """Conditioning of ``num_images`` images: their labels, repeated as needed; all classes in turn by default.

        Raises:
            ZeusError: Labels for a model that has none.
        """
        known = self.bundle.manifest.labels
        if known is None:
            if labels is None:
                return {}
            raise ZeusError("label: got one for a model without class labels; expected none. Leave it out.")
        cycle = list(labels or range(known.count))
        return {"class_labels": torch.tensor([cycle[i % len(cycle)] for i in range(num_images)])}

    def generate(
        self,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        *,
        plan: StepPlan,
        num_steps: int = 50,
        batch: int = 1,
        guidance_scale: float = 1.0,
        seed: int | Sequence[int] = 0,
        predictor: str | Predictor = "zeus",
        noise: torch.Tensor | None = None,
        negative: Mapping[str, torch.Tensor] | None = None,
        mode: str = "auto",
        on_call: Callable[[], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
    ) -> Result:
        """Runs one trajectory to its end.

        Args:
            conditioning: As in ``sample``, and so on.
            mode: ``program`` (solver and plan folded into a matrix per full step), ``step``
                (the scheduler's own ``step``, as ``sample`` does), or ``auto``.
            on_call: Called after every call of the denoiser.
            on_step: Told every step as it is done; it makes ``auto`` go step by step.

        Raises:
            ZeusError: As ``sample``, and ``program`` for a solver that is not linear.
        """
        start = time.perf_counter()
        program, reason = self.solver.choose("step" if on_step else mode, plan, num_steps, predictor)
        meter = _Meter(self.engine, on_call)
        task = self._prepare(meter, conditioning, batch, guidance_scale, seed, noise, negative)
        if program:
            latents = ProgramLoop(program, task["noise"]).run(**task)
        else:
            scheduler = self.solver.scheduler
            for step in run_steps(scheduler=scheduler, plan=plan, num_steps=num_steps, predictor=predictor, **task):
                latents = step.latents
                if on_step:
                    on_step(step)
        report = Report(
            backend=getattr(self.engine, "backend", type(self.engine).__name__),
            mode="program" if program else "step",
            mode_reason=reason,
            plan=str(plan),
            predictor=str(Predictor.parse(predictor)),
            nfe=meter.calls,
            engine_seconds=meter.seconds,
            total_seconds=time.perf_counter() - start,
            speedup_bound=plan.speedup_bound,
        )
        return Result(latents, report)

    def _prepare(
        self,
        denoiser: Denoiser,
        conditioning: Mapping[str, torch.Tensor] | None,
        batch: int,
        guidance_scale: float,
        seed: int | Sequence[int],
        noise: torch.Tensor | None,
        negative: Mapping[str, torch.Tensor] | None,
    ) -> dict[str, Any]:
        """What both loops are told: denoiser, noise, conditioning, name of the latents."""
        conditioning = dict(conditioning or {})
        manifest = self.bundle.manifest
        manifest.check_loop()
        self._check_conditioning(conditioning)
        if manifest.timestep_scale != 1.0:
            denoiser = _scale_timestep(denoiser, float(manifest.timestep_scale or 0.0))
        by_row = {spec.name for spec in manifest.inputs if spec.axes and spec.axes[0] == manifest.latents.axes[0]}
        if noise is None:
            rows = [len(value) for name, value in conditioning.items() if name in by_row]
            batch = max([batch, *rows, *([] if isinstance(seed, int) else [len(seed)])])
            noise = draw_noise((batch, *manifest.latent_shape), seed)
        if guidance_scale != 1.0:
            negative = self._null_labels(len(noise)) if negative is None else negative
            shared = [name for name in conditioning if name not in by_row]
            denoiser = ClassifierFreeGuidance(denoiser, guidance_scale, negative, shared)
        return {
            "denoiser": denoiser,
            "noise": noise,
            "conditioning": conditioning,
            "latents_name": manifest.latents.name,
        }

    def _null_labels(self, batch: int) -> dict[str, torch.Tensor]:
        labels = self.bundle.manifest.labels
        if labels is None:
            raise ZeusError(
                "negative: got none, with guidance, for a model without class labels; expected the conditioning of the "
                "unconditional rows. Give it, or leave guidance_scale at 1."
            )
        return {"class_labels": torch.full((batch,), labels.null)}

    def _check_conditioning(self, conditioning: Mapping[str, torch.Tensor]) -> None:
        expected = [spec.name for spec in self.bundle.manifest.inputs[2:]]
        if sorted(conditioning) != sorted(expected):
            raise ZeusError(
                f"conditioning: got {sorted(conditioning)}; expected {sorted(expected)}. Pass each of them by name."
            )
        labels = self.bundle.manifest.labels
        if labels is None:
            return
        given = conditioning["class_labels"]
        wrong = given[(given < 0) | (given > max(labels.null, labels.count - 1))]
        if len(wrong):
            raise ZeusError(
                f"label: got {int(wrong[0])}; expected 0..{labels.count - 1}. Choose a class that the model knows."
            )


def _scale_timestep(denoiser: Denoiser, scale: float) -> Denoiser:
    def scaled(**inputs: torch.Tensor) -> torch.Tensor:
        return denoiser(**{**inputs, "timestep": inputs["timestep"] * scale})

    return scaled


class _Meter:
    """Counts the calls of a denoiser and the time inside it."""

    def __init__(self, denoiser: Denoiser, on_call: Callable[[], None] | None):
        self._denoiser = denoiser
        self._on_call = on_call
        self.calls = 0
        self.seconds = 0.0

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        start = time.perf_counter()
        output = self._denoiser(**inputs)
        self.seconds += time.perf_counter() - start
        self.calls += 1
        if self._on_call:
            self._on_call()
        return output
