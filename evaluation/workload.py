"""A model, its conditioning, and the noise of every sample by its number."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.guidance_range import Scale, read_scale, take_scale
from zeus_trt.export.labels import choose_guidance
from zeus_trt.runtime import Bundle, Denoiser, Report, Session, Step, draw_noise
from zeus_trt.runtime.engines.choose import choose_engine, open_engine
from zeus_trt.runtime.rows import choose_shape, digest_tensors, list_given, read_rows, take_rows
from zeus_trt.runtime.scheduler import make_scheduler
from zeus_trt.zeus_graph import Plan, Predictor, SolverProgram, json_file
from zeus_trt.zeus_graph.plan_choice import Planner, lay_plan
from zeus_trt.zeus_graph.policy import PolicyMaker

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setting:
    """How samples are made.

    Args:
        plan: What happens at each evaluation; it carries the rule that fills skipped steps.
        num_steps: Solver steps.
        solver: ``default``, the checkpoint's own, one of ``runtime.scheduler.SOLVERS``, or as ``name_solver`` gives it.
        backend: Which engine.
        mode: As in ``Session.generate``.
        policy: As in ``Request``.
    """

    plan: Plan
    num_steps: int = 50
    solver: str = "default"
    backend: str = "onnxruntime"
    mode: str = "auto"
    policy: PolicyMaker | None = None

    @property
    def predictor(self) -> Predictor:
        """The rule that fills skipped steps."""
        return self.plan.rule

    @property
    def full(self) -> "Setting":
        """The same with every step full."""
        return replace(self, plan=Plan("F" * len(self.plan)), policy=None)


@dataclass(frozen=True)
class Sample:
    """The samples of a run.

    Args:
        latents: Float32 (batch, ...), on the CPU.
        images: (batch, channels, height, width), or with frames before the channels; in -1..1.
        report: Of the run.
    """

    latents: torch.Tensor
    images: torch.Tensor
    report: Report


class Workload(Protocol):
    """A model and what it samples. Sample number k has its own noise and conditioning, whatever the setting."""

    def describe(self) -> Mapping[str, Any]:
        """All that determines the samples, except setting and numbers: JSON data, for cache keys and records."""
        ...

    def program(self, num_steps: int, solver: str = "default") -> SolverProgram:
        """The traced solver."""
        ...

    def count_evaluations(self, num_steps: int, solver: str = "default") -> int:
        """Denoiser evaluations of ``num_steps`` steps: the length of a plan."""
        ...

    def sample(self, plan: Plan | Planner | None, numbers: Sequence[int], **options: Any) -> Sample:
        """As ``run``, with the fields of a setting as options, and a plan, a function that makes one, or none but the
        option ``min_psnr``."""
        ...

    def run(
        self,
        setting: Setting,
        numbers: Sequence[int],
        on_step: Callable[[Step], None] | None = None,
        on_call: Callable[[], None] | None = None,
    ) -> Sample:
        """Makes the samples of these numbers, as one batch.

        Args:
            setting: How.
            numbers: Which samples.
            on_step: Called after every step; the output in it is after guidance. The run goes step by step.
            on_call: Called after every call of the denoiser.
        """
        return self.sample(numbers=numbers, on_step=on_step, on_call=on_call, **vars(setting))

    def compare(self, setting: Setting, numbers: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields each evaluation's output of the full engine, and that of the quantized one at the same latents.

        Raises:
            ZeusError: No quantized engine can be asked at the same latents.
        """
        raise ZeusError(
            f"quantized: got {type(self).__name__}, whose engines cannot be called twice at a step; expected a bundle "
            "with class labels or without conditioning. Calibrate plans without Q."
        )


def make_full_setting(
    workload: Workload, num_steps: int = 50, solver: str = "default", backend: str = "onnxruntime", mode: str = "auto"
) -> Setting:
    """The setting of a run whose every step is full."""
    return Setting(Plan("F" * workload.count_evaluations(num_steps, solver)), num_steps, solver, backend, mode)


class SessionWorkload(Workload):
    """A bundle whose conditioning is class labels, tensors that are given, or nothing.

    Args:
        bundle: A bundle.
        labels: Class labels, one per sample, in turn; all classes by default.
        guidance_scale: As in ``choose_guidance``; 1 turns it off. Of a range each sample takes its own: it runs alone.
        seed: Sample k draws its noise from seed + k.
        engines: Opened engines by backend; those of the bundle are opened when they are run first.
        inputs: Conditioning by name, as in ``read_rows``; sample k takes row k, in turn.

    Raises:
        ZeusError: Labels or a scale for a model without class labels, or conditioning that is missing or unknown.
    """

    def __init__(
        self,
        bundle: Bundle,
        labels: Sequence[int] | None = None,
        guidance_scale: Scale | None = None,
        seed: int = 0,
        engines: Mapping[str, Denoiser] | None = None,
        inputs: Mapping[str, Any] | None = None,
    ):
        if labels is not None and bundle.manifest.labels is None:
            raise ZeusError("label: got one for a model without class labels; expected none. Leave it out.")
        self.bundle = bundle
        self.labels = labels
        manifest = bundle.manifest
        asked = read_scale(guidance_scale)
        spans = isinstance(asked, tuple)
        chosen = choose_guidance(
            asked[1] if spans else asked, manifest.labels is not None, reads_scale=manifest.guidance == "embedded"
        )
        self.guidance_scale: Scale = asked if spans else chosen
        self.seed = seed
        self._specs = list_given(manifest)
        self.inputs = read_rows(self._specs, manifest.latents.axes[0], inputs or {})
        self.engines = dict(engines or {})
        self._engine = cache(lambda backend: self.engines.get(backend) or open_engine(bundle, backend))
        self._scheduler = cache(self._make_scheduler)
        self._session = cache(self._open_session)

    def open(self, backend: str) -> str:
        """Opens an engine, the best one for ``auto``, and returns its name; raises ZeusError where it does not open."""
        engine, reason = choose_engine(self.bundle, backend)
        logger.info("runs %s: %s", engine.backend, reason)
        self.engines[engine.backend] = engine
        return engine.backend

    def describe(self) -> dict[str, Any]:
        return {
            "model": self.bundle.manifest.model,
            "weights_sha256": self.bundle.manifest.weights_sha256,
            "labels": list(self.labels) if self.labels else None,
            "guidance_scale": json_file.plain(self.guidance_scale),
            "seed": self.seed,
            **({"inputs": digest_tensors(self.inputs)} if self.inputs else {}),
            **({"adapter": self.bundle.adapter.name} if self.bundle.adapter else {}),
        }

    def program(self, num_steps: int, solver: str = "default") -> SolverProgram:
        return self._session(self.bundle.manifest.base_backend, solver).solver.program(num_steps)

    def count_evaluations(self, num_steps: int, solver: str = "default") -> int:
        return len(self._session(self.bundle.manifest.base_backend, solver).plan(num_steps, 0))

    def sample(
        self,
        plan: Plan | Planner | None,
        numbers: Sequence[int],
        *,
        num_steps: int = 50,
        solver: str = "default",
        backend: str | None = None,
        **options: Any,
    ) -> Sample:
        """Makes the samples of these numbers, as one batch; ``options`` are those of ``Session.generate``.

        Raises:
            ZeusError: As ``Session.generate``.
        """
        backend = backend or self.bundle.manifest.base_backend
        session = self._session(backend, solver)
        result = session.generate(
            self._condition(backend, solver, numbers),
            noise=self._draw(numbers),
            plan=self._lay(plan, session, num_steps) if callable(plan) else plan,
            num_steps=num_steps,
            guidance_scale=take_scale(self.guidance_scale, numbers),
            seed=[self.seed + number for number in numbers],
            **options,
        )
        latents = result.latents.float().cpu().clone()
        return Sample(latents, latents.clamp(-1, 1), result.report)

    def _lay(self, planner: Planner, session: Session, num_steps: int) -> Plan:
        return lay_plan(planner, len(session.plan(num_steps, 0)), lambda: session.solver.program(num_steps))

    def compare(self, setting: Setting, numbers: Sequence[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self._session(setting.backend, setting.solver).compare(
            self._condition(setting.backend, setting.solver, numbers), num_steps=setting.num_steps,
            noise=self._draw(numbers),
            guidance_scale=take_scale(self.guidance_scale, numbers), seed=[self.seed + number for number in numbers],
        )  # fmt: skip

    def _condition(self, backend: str, solver: str, numbers: Sequence[int]) -> dict[str, torch.Tensor]:
        conditioning = self._session(backend, solver).label_images(self.labels, max(numbers) + 1)
        labels = {name: rows[list(numbers)] for name, rows in conditioning.items()}
        return labels | take_rows(self._specs, self.bundle.manifest.latents.axes[0], self.inputs, numbers)

    def _draw(self, numbers: Sequence[int]) -> torch.Tensor:
        seeds = [self.seed + number for number in numbers]
        return draw_noise((len(numbers), *choose_shape(self.bundle.manifest)), seeds)

    def _open_session(self, backend: str, solver: str) -> Session:
        return Session(self.bundle, engine=self._engine(backend), scheduler=self._scheduler(solver))

    def _make_scheduler(self, solver: str) -> Any:
        return None if solver == "default" else make_scheduler(self.bundle.scheduler_config, solver)
