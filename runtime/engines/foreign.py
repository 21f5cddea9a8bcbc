"""Engines that others compiled: what a solver passes and reads is computed around each of their calls."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_file import copy_engine
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR, EngineFile, ask_engine, load_engine
from zeus_trt.runtime.bundle.engine_record import EngineRecord
from zeus_trt.runtime.bundle.foreign import Foreign
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.engines.aot_inductor import AotEngine
from zeus_trt.runtime.engines.border import enter, leave
from zeus_trt.runtime.engines.engine import Engine
from zeus_trt.runtime.engines.tensorrt import TensorRTEngine

_AGAIN = "Import the engine where it shall run: `zeus-trt import`"


class ForeignEngine(Engine):
    """An engine that others compiled as a denoiser: its border is the solver's.

    Args:
        inner: The engine, which it closes.
        foreign: What the engine takes, and what is computed around it.
        inputs: The bundle's: latents, timestep, conditioning.
        symbols: What the axes' names are in pixels, for messages.
    """

    def __init__(
        self, inner: Engine, foreign: Foreign, inputs: Sequence[TensorSpec], symbols: Sequence[SymbolSpec] = ()
    ):
        self._inner, self._foreign, self._symbols = inner, foreign, symbols
        self._batch = inputs[0].axes[0]
        self._axes = {spec.name: spec.axes for spec in inputs}
        self._dtypes = {spec.name: getattr(torch, spec.dtype) for spec in inputs}
        self.info, self.record = inner.info, inner.record

    def _compute(self, cast: dict[str, torch.Tensor]) -> torch.Tensor:
        border = self._foreign.border
        (name, latents), (_, timestep), *_ = cast.items()
        entered, time = enter(border, latents, timestep)
        fed = {**cast, name: entered}
        places = [slice(row, row + 1) for row in range(len(latents))] if self._foreign.by_rows else [slice(None)]
        try:
            outputs = [self._inner._compute(self._feed(fed, time[place], place)) for place in places]
        except (RuntimeError, IndexError) as error:  # of code that others compiled
            raise ZeusError(
                f"{self.backend}: got an engine that fails ({say_cause(error)}); expected an output for inputs of "
                "these sizes. Change them, or ask who compiled it."
            ) from error
        output = torch.cat([*map(torch.atleast_1d, outputs)]) if len(outputs) > 1 else outputs[0]
        return leave(border, output.float(), latents, timestep)

    def _feed(self, fed: dict[str, torch.Tensor], time: torch.Tensor, place: slice) -> dict[str, torch.Tensor]:
        """The engine's own inputs for some rows, in its order and types."""
        by_rows, own = self._foreign.by_rows, {}
        for spec in self._foreign.inputs:
            dtype = getattr(torch, spec.dtype)
            if spec.role == "timestep":
                value = time if dtype.is_floating_point else time.round()
                value = value.reshape([-1, *[1] * (len(spec.axes) - 1)] if spec.axes else [])
            else:
                has_rows = by_rows and spec.axes[:1] == (self._batch,)
                value = fed[spec.name][place].clone() if has_rows else fed[spec.name]
            own[spec.name] = value.to(dtype).contiguous()
        return own

    def _release(self) -> None:
        self._inner.close()


def open_foreign(
    bundle: Bundle, backend: str, device: torch.device, precision: str | None, trust: bool | None, **options: Any
) -> ForeignEngine:
    """The engine of a bundle without a graph; ``options`` are those of its class.

    Raises:
        ZeusError: Another backend than its own, or as ``load_engine``; ``trust`` is as there.
    """
    manifest = bundle.manifest
    foreign = manifest.foreign
    assert foreign
    if backend != foreign.backend:
        raise ZeusError(
            f"backend: got {backend} for a bundle without a graph, whose engine is {foreign.backend}; expected that. "
            "Leave it out, or import the graph or the program that the engine was compiled from."
        )

    def load(path: Path, record: EngineRecord) -> ForeignEngine:
        if record.sha256 != foreign.sha256:
            raise ZeusError(
                f"engine: got one of SHA-256 {record.sha256[:12]}; expected {foreign.sha256[:12]}, which the bundle "
                "was made of. Copy the bundle again."
            )
        inner = open_inner(foreign, EngineFile(path, record), device, **options)
        return ForeignEngine(inner, foreign, manifest.inputs, manifest.symbols)

    return load_engine(bundle.path, ask_engine(manifest, backend, device, precision), load, trust, _AGAIN)


def open_inner(foreign: Foreign, file: EngineFile, device: str | torch.device, **options: Any) -> Engine:
    """The engine alone, whose border is its own; ``options`` are those of its class.

    Raises:
        ZeusError: It does not load.
    """
    record = file.record
    assert record
    if foreign.backend != AOT_INDUCTOR:
        return TensorRTEngine(file, foreign, device, **options)
    with copy_engine(file.path, record) as package:
        spec = record.spec
        engine = AotEngine(
            package, foreign.inputs, spec.profile, device, precision=spec.precision, place=foreign.place, **options
        )
    engine.record = record
    return engine
