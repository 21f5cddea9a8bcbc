"""One run of the loop, with its own state."""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.batch_size import RowCalls
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.calls import Asked, ModelCall
from zeus_trt.runtime.conditioning import Sizes, check_labels, check_names, count_rows, list_conditioning
from zeus_trt.runtime.denoiser import Denoiser, EnginePair
from zeus_trt.runtime.guidance import ClassifierFreeGuidance
from zeus_trt.runtime.loop import run, start_stepper, walk
from zeus_trt.runtime.noise import draw_from, make_generators
from zeus_trt.runtime.request import SettledRequest, expect
from zeus_trt.runtime.solver import Solver
from zeus_trt.runtime.start import Start, add_noise, keep_outside
from zeus_trt.runtime.steppers import Blend, ProgramStepper, SchedulerStepper, Step, Stepper
from zeus_trt.zeus_graph.policy_choice import choose_policy
from zeus_trt.zeus_graph.sampling_program import SamplingProgram

_EMBEDDED = "guidance"  # diffusers' name of the input that reads the scale


@dataclass(frozen=True)
class Outcome:
    """Final latents, the plan that ran, the calls of the denoiser, drift, and what each row did."""

    latents: torch.Tensor
    plan: str
    model: ModelCall
    drift: tuple[tuple[int, float], ...] = ()
    row_plans: tuple[str, ...] = ()


class Trajectory:
    """A request that was checked, on a stepper.

    Args:
        request: What to run.
        manifest: What the engine takes.
        engine: The denoiser, or a pair of them for a plan with ``Q``.
        solver: Makes the scheduler that adds noise and steps.
        device: Where it runs; None for the noise's device.
        on_call: Called after every full step.
        reason: Why this plan.

    Raises:
        ZeusError: Tensors that do not fit the manifest.
    """

    def __init__(
        self,
        request: SettledRequest,
        manifest: Manifest,
        engine: Denoiser | EnginePair,
        solver: Solver,
        device: torch.device | None = None,
        on_call: Callable[[], None] | None = None,
        reason: str = "",
    ):
        self.reason = reason
        self.request, self._manifest, self._solver = request, manifest, solver
        engines = (engine.full, engine.quantized) if isinstance(engine, EnginePair) else (engine,)
        self._some_rows = RowCalls(engines, manifest)
        guard = SizeRules.of(manifest).guard
        self._engine: Denoiser | EnginePair
        if isinstance(engine, EnginePair):
            self._engine = EnginePair(guard(engine.full), guard(engine.quantized))
        else:
            self._engine = guard(engine)
        self._on_call = on_call
        given = request.noise.device if isinstance(request.noise, torch.Tensor) else torch.device("cpu")
        self._device = device or given
        self._specs = list_conditioning(manifest)
        self._by_row = {name for name, spec in self._specs.items() if spec.axes[:1] == manifest.latents.axes[:1]}
        _check_steppable(manifest)
        check_names("conditioning", request.conditioning, self._specs, optional=(_EMBEDDED,))
        self._sizes = Sizes(manifest.symbols, manifest.relations, manifest.latents.axes[0])
        self._generators = make_generators(request.seed)
        noise = self._check_noise()
        self.conditioning = self._check_conditioning(len(noise))
        self._guidance = self._choose_guidance(len(noise))
        self.begin: int | None = None
        self.noise = noise
        self._blend: Blend | None = None
        if request.start:
            self._check_start(request.start, noise)
            self.begin = request.start.begin
            self.noise = add_noise(solver.scheduler, request.start, noise, request.num_steps, request.schedule)
            if request.start.mask is not None:
                self._blend = keep_outside(request.start.latents, request.start.mask, noise)

    def find_need(self, mode: str) -> str | None:
        """What of the request only step mode does, if anything.

        Raises:
            ZeusError: ``program`` for that.
        """
        request = self.request
        needs = (("a mask", self._blend), ("drift", request.drift_threshold), ("a policy", request.policy))
        asks = [name for name, asked in needs if asked]
        if asks and mode == "program":
            raise ZeusError(f"mode: got program with {asks[0]}; expected step or auto. Choose one of these.")
        return asks[0] if asks else None

    def run(self, program: SamplingProgram) -> Outcome:
        """Runs in program mode."""
        stepper = ProgramStepper(program, self.noise)
        model = self.make_call(stepper)
        run(model, stepper)
        return Outcome(model.finish().clone(), program.plan, model)  # not a view of all that the stepper held

    def walk(self, on_step: Callable[[Step], None] | None = None) -> Outcome:
        """Runs in step mode to the end."""
        letters, drift = "", []
        model, stepper = self.open_steps()
        for step in walk(model, stepper):
            letters += step.kind
            if step.drift is not None:
                drift.append((step.index, step.drift))
            if on_step:
                on_step(step)
        measured = tuple((index, float(value)) for index, value in drift)
        return Outcome(step.latents, letters, model, measured, stepper.row_plans)

    def ask(self, program: SamplingProgram | None) -> Generator[Asked, torch.Tensor, Outcome]:
        """As ``run``, or ``walk`` without a program, but whoever holds the generator calls the engine."""
        stepper: ProgramStepper | SchedulerStepper
        if program:
            stepper = ProgramStepper(program, self.noise)
            model = self.make_call(stepper)
        else:
            model, stepper = self.open_steps()
        letters, drift = "", []
        while call := stepper.call:
            output = yield from model.ask(*call)
            if isinstance(stepper, ProgramStepper):
                stepper.feed(output)
                continue
            for step in stepper.advance(output):
                letters += step.kind
                if step.drift is not None:
                    drift.append((step.index, float(step.drift)))
        latents = model.finish()
        return Outcome(latents.clone(), program.plan if program else letters, model, tuple(drift))

    def begin_steps(self) -> tuple[ModelCall, Iterator[Step]]:
        """The denoiser and the steps of a run in step mode."""
        model, stepper = self.open_steps()
        return model, walk(model, stepper)

    def open_steps(self) -> tuple[ModelCall, SchedulerStepper]:
        """The denoiser and the stepper of a run in step mode."""
        request = self.request
        stepper = start_stepper(
            self._solver.scheduler, self.noise, request.plan, request.num_steps,
            begin=self.begin, schedule=request.schedule,
            make_policy=request.policy or choose_policy(request.drift_threshold),
            generator=self._generators, blend=self._blend,
        )  # fmt: skip
        return self.make_call(stepper), stepper

    def count_calls(self) -> int:
        """How many calls of the engine it will make, if its plan stays as it is."""
        plan, guided = self.request.plan, self.request.guidance.steps(len(self.request.plan))
        is_twice = isinstance(self._guidance, ClassifierFreeGuidance) and self._guidance.sequential
        return plan.nfe + (sum(step in guided for step in plan.full_steps) if is_twice else 0)

    def make_call(self, stepper: Stepper) -> ModelCall:
        """The guided denoiser, as a loop over this stepper calls it."""
        return ModelCall(
            self._engine, stepper, self.conditioning, self._manifest.latents.name,
            guidance=self._guidance,
            interval=self.request.guidance.steps(len(self.request.plan)), on_call=self._on_call,
            some_rows=self._some_rows,
        )  # fmt: skip

    def _check_noise(self) -> torch.Tensor:
        request, manifest = self.request, self._manifest
        spec = TensorSpec("noise", "float32", manifest.latents.axes)
        seeds = [] if isinstance(request.seed, int) else [len(request.seed)]
        if request.noise is not None:
            self._sizes.check(spec, request.noise)
            count = len(request.noise)
            if seeds not in ([], [count]) or request.batch not in (1, count):
                raise ZeusError(
                    f"noise: got {count} rows, and batch {request.batch} or {seeds or 'no'} seeds; expected as many. "
                    "Leave batch out, and give one seed or one per row."
                )
            if not request.noise.is_floating_point():
                raise ZeusError(f"noise: got {request.noise.dtype}; expected float32. Draw it with draw_noise().")
            is_wide = request.noise.dtype == torch.float64
            return request.noise.detach().to(self._device, torch.float64 if is_wide else torch.float32)
        given = [name for name in request.conditioning if name in self._by_row]
        rows = [count_rows(self._specs[name], request.conditioning[name]) for name in given]
        if request.start:
            rows.append(count_rows(spec, request.start.latents))
            shape = tuple(request.start.latents.shape[1:])
        else:
            shape = manifest.latent_shape
        batch = max([request.batch, *rows, *seeds])
        try:
            noise = draw_from(self._generators, (batch, *shape))
        except RuntimeError as error:  # torch's word for no memory
            raise ZeusError(
                f"batch: got {batch}, which does not fit in memory; expected fewer images at once. Lower it."
            ) from error
        self._sizes.check(spec, noise)
        return noise.to(self._device)

    def _check_conditioning(self, batch: int) -> dict[str, torch.Tensor]:
        given = dict(self.request.conditioning)
        if _EMBEDDED in self._specs and _EMBEDDED not in given:
            factor = self._manifest.guidance_factor
            if factor is None:
                raise ZeusError(
                    "guidance: got none for a denoiser that reads its scale in an unknown unit; expected it in the "
                    "conditioning, as the pipeline gives it."
                )
            given[_EMBEDDED] = torch.full((batch,), self.request.guidance.scale * factor)
        return self._check_tensors(given)

    def _check_tensors(self, tensors: Mapping[str, Any], free: bool = False) -> dict[str, torch.Tensor]:
        for name, tensor in tensors.items():
            self._sizes.check(self._specs[name], tensor, free)
            check_labels(self._manifest, name, tensor)
        return {name: tensor.detach().to(self._device) for name, tensor in tensors.items()}

    def _choose_guidance(self, batch: int) -> Callable[[Denoiser], Denoiser] | None:
        guidance, manifest = self.request.guidance, self._manifest
        if guidance.wrap:
            return self._wrap
        sequential = manifest.guidance == "sequential" if guidance.sequential is None else guidance.sequential
        negative = guidance.negative
        if negative is not None:
            allowed = {name: spec for name, spec in self._specs.items() if sequential or name in self._by_row}
            check_names("negative", negative, allowed, optional=tuple(allowed))
            negative = self._check_tensors(negative, free=sequential)
        if _EMBEDDED in self._specs and _EMBEDDED not in self.request.conditioning:
            if negative is not None:
                raise ZeusError(
                    "negative: got one for a denoiser that reads its guidance scale as an input; expected nothing. "
                    "Leave it out, or give the conditioning guidance too: then guidance_scale is that of "
                    "classifier-free guidance."
                )
            return None
        if guidance.scale == 1.0:
            return None
        shared = [name for name in self.conditioning if name not in self._by_row]
        negative = self._null_labels(batch) if negative is None else negative
        return ClassifierFreeGuidance(guidance.scale, negative, shared, sequential=sequential, rescale=guidance.rescale)

    def _wrap(self, denoiser: Denoiser) -> Denoiser:
        assert self.request.guidance.wrap
        wrapped = self.request.guidance.wrap(denoiser)
        expect("guidance wrap", wrapped, Callable, "a function that returns a denoiser")
        return wrapped

    def _null_labels(self, batch: int) -> dict[str, torch.Tensor]:
        labels = self._manifest.labels
        if labels is None:
            raise ZeusError(
                "negative: got none, with guidance, for a model without class labels; expected the conditioning of the "
                "unconditional rows. Give it, or leave guidance_scale at 1."
            )
        return {"class_labels": torch.full((batch,), labels.null, device=self._device)}

    def _check_start(self, start: Start, noise: torch.Tensor) -> None:
        spec = TensorSpec("start latents", "float32", self._manifest.latents.axes)
        self._sizes.check(spec, start.latents)
        if start.mask is not None:
            mask = start.mask
            fits = isinstance(mask, torch.Tensor) and mask.ndim <= noise.ndim and not mask.is_complex()
            sizes = zip(mask.shape[::-1], noise.shape[::-1], strict=False) if fits else ()
            if not fits or not all(size in (1, whole) for size, whole in sizes):
                raise ZeusError(
                    f"mask: got {tuple(mask.shape) if fits else type(mask).__name__}; expected a tensor that "
                    f"broadcasts to {tuple(noise.shape)}. Change it."
                )
            if not bool(((mask >= 0) & (mask <= 1)).all()):
                raise ZeusError("mask: got values outside of 0..1; expected 1 where it is painted anew. Change it.")


def _check_steppable(manifest: Manifest) -> None:
    if manifest.unsteppable:
        raise ZeusError(
            f"denoiser: got one that no solver can step, since {manifest.unsteppable}; expected one of the solver's "
            "latents and timestep. Wrap the engine in such a denoiser, and use run_steps()."
        )
