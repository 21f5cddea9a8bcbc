"""A plan of TensorRT or TensorRT-RTX that others built: what the engine in it says of its tensors."""

from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.foreign_engine import CompiledModel
from zeus_trt.export.foreign_model import name_axis
from zeus_trt.files import digest_file
from zeus_trt.runtime.bundle.engine_record import Target
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec, name_dtype
from zeus_trt.runtime.engines.hardware import find_gpu
from zeus_trt.runtime.engines.tensorrt import TORCH_TYPES, make_logger
from zeus_trt.runtime.engines.tensorrt_module import MODULES, import_tensorrt

PLANS = (".plan", ".engine", ".trt")
"""Endings of plans."""

_Tensors = tuple[tuple[TensorSpec, ...], tuple[str, ...], tuple[SymbolSpec, ...]]
_ELSEWHERE = "Import it where it was built, or import the graph that it was built from"


def read_plan(path: Path, latents: str) -> CompiledModel:
    """Reads the tensors of a plan's engine. Untested on hardware: its tests run against a double of the module.

    Args:
        path: The file.
        latents: The name of its noisy latents.

    Raises:
        ZeusError: No GPU, no library that reads it, or tensors that nothing here can pass.
    """
    if (gpu := find_gpu()) is None:  # before anything of TensorRT: without CUDA it may end the process
        raise ZeusError(
            f"model: got {path.name}, a plan of TensorRT, on a machine without a CUDA device; expected a GPU of the "
            f"kind that it was built for, where alone a plan reads. {_ELSEWHERE}."
        )
    backend, version, (inputs, outputs, symbols) = _deserialize(path)
    if len(outputs) != 1 or len(inputs) < 2:
        raise ZeusError(
            f"model: got {path.name} with {len(inputs)} inputs and {len(outputs)} outputs; expected latents, a "
            "timestep and one output. Build it again without the others."
        )
    noisy = next((spec for spec in inputs if spec.name == latents), inputs[0])
    return CompiledModel(
        path=path,
        inputs=inputs,
        outputs=outputs,
        rules=SizeRules({spec.name: spec.axes for spec in inputs}, {}, symbols),
        sizes={symbol.name: symbol.minimum for symbol in symbols if symbol.name not in noisy.axes},
        kind=backend,
        version=version,
        stored=Precision.of(getattr(torch, noisy.dtype)) or Precision.FP32,
        target=Target((gpu.sm,), gpu.name),
        device="cuda",
        size=path.stat().st_size,
        sha256=digest_file(path),
    )


def _deserialize(path: Path) -> tuple[str, str, _Tensors]:
    """The backend whose library reads a plan, that library's version, and the tensors of the engine."""
    reasons = []
    try:
        plan = path.read_bytes()
    except OSError as error:
        raise ZeusError(f"model: got {path}, which cannot be read ({say_cause(error)}); expected a plan. Give its "
                        "file.") from error  # fmt: skip
    for backend in MODULES:
        try:
            trt = import_tensorrt(backend)
        except ZeusError:
            reasons.append(f"{backend} is not installed")
            continue
        logger = make_logger(trt)
        runtime = trt.Runtime(logger)  # must live for as long as the engine
        engine = runtime.deserialize_cuda_engine(plan)
        if engine is not None:
            return backend, trt.__version__, _read_tensors(trt, engine)
        reasons.append(f"{backend} {trt.__version__}: {logger.last or 'it does not say why'}")
    raise ZeusError(
        f"model: got {path.name}, which does not read here ({'; '.join(reasons)}); expected a plan for this GPU and "
        f"a library that is installed. {_ELSEWHERE}."
    )


def _read_tensors(trt: Any, engine: Any) -> _Tensors:
    """Its inputs, the names of its outputs, and the ranges of its first profile."""
    inputs, outputs, symbols = [], [], []
    for name in (engine.get_tensor_name(place) for place in range(engine.num_io_tensors)):
        if engine.get_tensor_mode(name) != trt.TensorIOMode.INPUT:
            outputs.append(name)
            continue
        dtype = TORCH_TYPES.get(engine.get_tensor_dtype(name).name)
        if dtype is None:
            raise ZeusError(
                f"model: got the input {name} of {engine.get_tensor_dtype(name).name}; expected a type that torch has. "
                "Build the plan again."
            )
        shape = tuple(engine.get_tensor_shape(name))
        least, _, most = engine.get_tensor_profile_shape(name, 0) if -1 in shape else (shape, shape, shape)
        axes: list[int | str] = []
        for place, size in enumerate(shape):
            is_open = size < 0 and least[place] != most[place]
            axes.append(name_axis(name, place) if is_open else int(most[place]))
            if is_open:
                symbols.append(SymbolSpec(str(axes[-1]), (), maximum=int(most[place]), minimum=int(least[place])))
        inputs.append(TensorSpec(name, name_dtype(torch.empty(0, dtype=dtype)), tuple(axes)))
    return tuple(inputs), tuple(outputs), tuple(symbols)
