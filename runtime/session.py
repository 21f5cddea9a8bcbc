"""A bundle made ready to run."""

import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.mixture import Choice
from zeus_trt.runtime.denoiser import Denoiser, EnginePair
from zeus_trt.runtime.engines.choose import BACKENDS, check_device, check_given, choose_engine
from zeus_trt.runtime.engines.engine import Engine
from zeus_trt.runtime.menu import Aim, Menu
from zeus_trt.runtime.prepared import Prepared
from zeus_trt.runtime.report import Report, Result
from zeus_trt.runtime.request import Request, check_count, expect
from zeus_trt.runtime.solver import Solver
from zeus_trt.runtime.start import Start, find_begin
from zeus_trt.runtime.steppers import Step
from zeus_trt.runtime.trajectory import Trajectory
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.trace import UntraceableError

__all__ = ["Report", "Result", "Session"]


class Session:
    """An engine and the solver of a bundle; trajectories share nothing but these, and may run in any threads.

    ``backend_reason`` says why this engine runs, and ``options`` how another is opened.

    Args:
        bundle: A folder written by ``zeus-trt export``, or an opened ``Bundle``.
        engine: A denoiser to use instead of one of the bundle's own; a pair of them for plans with ``Q``.
        scheduler: A diffusers scheduler to use instead of the checkpoint's.
        backend: ``tensorrt``, ``tensorrt-rtx`` or ``aot-inductor``, made by ``zeus-trt build``; ``onnxruntime``, which
            runs the bundle's graph; or ``auto``, the first of these that runs here.
        device: Where it runs, such as ``cuda:1``; by default a GPU if there is one, else the CPU.
        precision: That of the graph, of a bundle with several; by default its first.
        adapter: What the engine adds to its weights, as in ``Bundle.with_adapter``; by default that of ``bundle``.
        **options: ``cuda_graph`` and ``trust_engines``, as in ``choose_engine``.

    Raises:
        ZeusError: The bundle is incomplete or changed, or a library is missing.
    """

    def __init__(
        self,
        bundle: str | Path | Bundle,
        *,
        engine: Denoiser | EnginePair | None = None,
        scheduler: Any = None,
        backend: str = "auto",
        device: str | torch.device | None = None,
        precision: str | None = None,
        adapter: Choice | None = None,
        **options: Any,
    ):
        expect("bundle", bundle, (str, Path, Bundle), "a folder or an opened bundle")
        expect("engine", engine, (Callable, EnginePair, type(None)), "a denoiser; name a backend instead to open one")
        if scheduler is not None and not hasattr(scheduler, "set_timesteps"):
            raise ZeusError(f"scheduler: got {type(scheduler).__name__}; expected a scheduler of diffusers. Change it.")
        opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        self.bundle = opened if adapter is None else opened.with_adapter(adapter)
        if engine is not None:
            check_given(engine, self.bundle, backend, options.get("cuda_graph"), precision, device)
        given = getattr(engine, "backend", None)
        self.options = {"backend": given if given in BACKENDS else backend, "device": device, **options}
        self._open = partial(choose_engine, **self.options)
        inspect.signature(self._open).bind(self.bundle)  # refuses other options
        self._lock = threading.Lock()
        self._quantized = engine.quantized if isinstance(engine, EnginePair) else None
        self.engine: Denoiser
        if engine is None:
            self.engine, self.backend_reason = self._open(bundle=self.bundle, precision=precision)
        else:
            self.engine, self.backend_reason = engine.full if isinstance(engine, EnginePair) else engine, "given"
        info = getattr(self.engine, "info", None)
        self._device = info.device if info else check_device(device) if device is not None else None
        self.solver = Solver(self.bundle, scheduler)
        self.menu = Menu(self.bundle)

    @property
    def backend(self) -> str:
        """Name of the engine."""
        return getattr(self.engine, "backend", type(self.engine).__name__)

    @property
    def device(self) -> torch.device | None:
        """Where trajectories run; None for where their noise is."""
        return self._device

    @property
    def quantized(self) -> Denoiser:
        """The engine of the ``Q`` steps of plans: of the bundle's int8 or fp8 graph, opened when it is first read.

        Raises:
            ZeusError: The bundle has no such graph, or no engine of it runs here.
        """
        with self._lock:
            if self._quantized is None:
                self._quantized, _reason = self._open(bundle=self.bundle, precision=self.bundle.find_quantized())
            return self._quantized

    def open_engine(self, adapter: Choice, precision: str | None = None) -> Engine:
        """Another engine of the same kind and device, with this adapter; errors as in the class."""
        return self._open(bundle=self.bundle.with_adapter(adapter), precision=precision)[0]

    def begin(self, num_steps: int, strength: float) -> int:
        """The evaluation that an image-to-image trajectory of ``strength`` (0..1) begins at.

        Families round differently: the manifest's ``strength_rule`` is the exported pipeline's own; where it has no
        image-to-image pipeline, the rule is Stable Diffusion's.
        """
        check_count("num_steps", num_steps, 1)
        order = getattr(self.solver.scheduler, "order", 1)
        return find_begin(order, num_steps, strength, self.bundle.manifest.strength_rule or "steps")

    def plan(self, num_steps: int, ratio: int, *, begin: int = 0, schedule: Mapping[str, Any] | None = None) -> Plan:
        """The uniform plan of ``num_steps`` solver steps with ``ratio`` skipped steps after each full one."""
        check_count("num_steps", num_steps, 1)
        check_count("begin", begin, 0)
        return Plan.uniform(self.solver.count_evaluations(num_steps, begin, schedule), ratio)

    def compare(
        self, conditioning: Mapping[str, torch.Tensor] | None = None, **settings: Any
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Runs every step by the full engine; yields its output and the quantized one's, (batch, ...), after guidance.

        Args:
            conditioning: Constant inputs of the denoiser by name, each (batch, ...).
            **settings: As in ``Request``, but for the plan.

        Raises:
            ZeusError: As ``sample``, and a bundle without a quantized graph.
        """
        settings = {**settings, "ratio": 0}
        model, stepper = self._start(conditioning, settings).open_steps()
        other = self._start(conditioning, settings, engine=self.quantized).make_call(stepper)
        while call := stepper.call:
            quantized = other(*(tensor.clone() for tensor in call)).clone()
            full = model(*call)
            yield full, quantized
            stepper.feed(full)

    def sample(self, conditioning: Mapping[str, torch.Tensor] | None = None, **settings: Any) -> Iterator[Step]:
        """Runs one trajectory, a step at a time.

        Args:
            conditioning: Constant inputs of the denoiser by name, each (batch, ...).
            **settings: As in ``Request``: ``num_steps``, ``ratio`` or ``plan``, ``guidance_scale``, ``seed`` ...

        Raises:
            ZeusError: Settings as in ``Request``, conditioning that does not fit the model, a plan of the wrong length,
                or an output that is not finite.
        """
        return self._start(conditioning, settings).begin_steps()[1]

    def label_images(self, labels: Sequence[int] | None, num_images: int) -> dict[str, torch.Tensor]:
        """Conditioning of ``num_images`` images: their labels, repeated as needed; all classes in turn by default.

        Raises:
            ZeusError: Labels for a model without class labels.
        """
        known = self.bundle.manifest.labels
        if known is None:
            if labels is None:
                return {}
            raise ZeusError("label: got one for a model without class labels; expected none. Leave it out.")
        check_count("num_images", num_images, 1)
        cycle = [int(label) for label in labels] if labels is not None and len(labels) else range(known.count)
        return {"class_labels": torch.tensor([cycle[i % len(cycle)] for i in range(num_images)])}

    def generate(
        self,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        *,
        mode: str = "auto",
        on_call: Callable[[], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
        **settings: Any,
    ) -> Result:
        """Runs one trajectory to its end.

        Args:
            conditioning: Constant inputs of the denoiser by name, each (batch, ...).
            mode: ``program`` (solver and plan folded into a matrix per full step), ``step``
                (the scheduler's own ``step``, as ``sample`` does), or ``auto``. A mask, drift and a policy need
                ``step``.
            on_call: Called after every full step.
            on_step: Called with every step as it is done; it makes any mode go step by step.
            **settings: As in ``Request``: ``num_steps``, ``ratio`` or ``plan``, ``guidance_scale``, ``seed`` ...

        Raises:
            ZeusError: As ``sample``, and ``program`` for a solver that is not linear.
        """
        return self.prepare(conditioning, mode=mode, on_call=on_call, on_step=on_step, **settings).run()

    def prepare(
        self,
        conditioning: Mapping[str, torch.Tensor] | None = None,
        *,
        mode: str = "auto",
        on_call: Callable[[], None] | None = None,
        on_step: Callable[[Step], None] | None = None,
        aim: Aim | None = None,
        **settings: Any,
    ) -> Prepared:
        """As ``generate``, but it only checks the request.

        Args:
            conditioning, mode, on_call, on_step, **settings: As in ``generate``.
            aim: Chooses the plan of a request that gives neither a plan nor a floor.

        Raises:
            ZeusError: As ``generate``, but for what the engine answers.
        """
        began = time.perf_counter()
        for name, callback in (("on_call", on_call), ("on_step", on_step)):
            expect(name, callback, (Callable, type(None)), "a function")
        trajectory = self._start(conditioning, settings, on_call, aim=aim)
        request = trajectory.request
        need = trajectory.find_need(mode) or ("a step at a time" if on_step else None)
        program, reason = self.solver.choose(
            mode, request.plan, request.num_steps, trajectory.begin, request.schedule, needs_steps=need
        )
        is_plain = on_call is on_step is request.policy is request.guidance.wrap is None
        return Prepared(self.backend, trajectory, program, reason, on_step, is_plain, began)

    def close(self) -> None:
        """Closes its engines."""
        for engine in (self.engine, self._quantized):
            if close := getattr(engine, "close", None):
                close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise ZeusError(
            "session: got it to be copied or sent to another process; expected it to stay where it was opened. Open "
            "one there: threads may share one."
        )

    def __repr__(self) -> str:
        added = f" with {self.bundle.adapter.name}" if self.bundle.adapter else ""
        return f"Session({str(self.bundle.path)!r}{added}, {self.backend}: {self.backend_reason})"

    def _start(
        self,
        conditioning: Mapping[str, torch.Tensor] | None,
        settings: Mapping[str, Any],
        on_call: Callable[[], None] | None = None,
        engine: Denoiser | EnginePair | None = None,
        aim: Aim | None = None,
    ) -> Trajectory:
        request = Request({} if conditioning is None else conditioning, **settings)
        start, num_steps = request.start, request.num_steps
        if start and start.strength is not None:
            start = Start(start.latents, self.begin(num_steps, start.strength), start.mask)
        begin = start.begin if start else 0
        request, reason = self._choose(request, begin, aim)
        schedule = num_steps, begin, request.schedule
        settled = request.settle(
            lambda: self.solver.count_evaluations(*schedule), lambda: self.solver.program(*schedule), start
        )
        if engine is None:
            engine = EnginePair(self.engine, self.quantized) if "Q" in settled.plan.steps else self.engine
        return Trajectory(settled, self.bundle.manifest, engine, self.solver, self._device, on_call, reason)

    def _choose(self, request: Request, begin: int, aim: Aim | None) -> tuple[Request, str]:
        """The request with the plan of its aim, and why this plan."""
        if request.says_plan:
            return request, "asked for"
        if aim is None and request.min_psnr is None:
            return request, "the default"

        def find_fingerprint() -> str:
            try:
                return self.solver.program(request.num_steps, begin, request.schedule).fingerprint
            except UntraceableError:
                return ""

        count = self.solver.count_evaluations(request.num_steps, begin, request.schedule)
        assert request.guidance  # set by the request itself
        offers = self.menu.list(request.num_steps, request.guidance, find_fingerprint)
        aim = replace(aim or Aim(), min_psnr=request.min_psnr)
        plan, reason = aim.choose(offers, count)
        return replace(request, plan=plan, min_psnr=None), reason
