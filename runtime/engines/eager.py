"""The torch module itself as an engine: the reference of all others, and what runs where nothing is compiled."""

import contextlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.engines.cuda_graph import CudaGraphs
from zeus_trt.runtime.engines.engine import Engine, EngineInfo


class EagerEngine(Engine):
    """A torch module as a denoiser.

    Args:
        module: In eval mode, on its device. It is not copied or changed: do not move it while a CUDA graph is used.
        inputs: Names and types, the latents first; those of a bundle's manifest, or written by hand.
        nest: Makes the keyword arguments of ``forward`` of the inputs by name, where these are not its own:
            ``text_embeds`` goes into ``added_cond_kwargs``. By default the names are those of ``forward``.
        compile: Run it through ``torch.compile``, which compiles at the first call of each shape.
        cuda_graph: Replay it from a CUDA graph.

    Raises:
        ZeusError: A module in train mode, or a CUDA graph on another device.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Sequence[TensorSpec],
        nest: Callable[[Mapping[str, torch.Tensor]], Mapping[str, Any]] = dict,
        *,
        compile: bool = False,
        cuda_graph: bool = False,
    ):
        if module.training:
            raise ZeusError("eager: got a module in train mode; expected eval mode. Call its eval().")
        weights = [*module.parameters(), *module.buffers()]
        device = weights[0].device if weights else torch.device("cpu")
        if cuda_graph and device.type != "cuda":
            raise ZeusError(f"eager: got a CUDA graph on {device}; expected a module on a CUDA device. Move it.")
        self._module: Any = module
        self._nest = nest
        self._options = {"return_dict": False} if "return_dict" in inspect.signature(module.forward).parameters else {}
        self._dtypes = {spec.name: getattr(torch, spec.dtype) for spec in inputs}
        self._forward: Any = torch.compile(module) if compile else module
        # One call at a time where calls share memory, or the compiler's state.
        self._lock = threading.Lock() if compile or cuda_graph else contextlib.nullcontext()
        self._run: Any = CudaGraphs(self._call, device, self._find_addresses) if cuda_graph else self._call
        self.prepares_shapes = compile or cuda_graph
        size = sum(value.numel() * value.element_size() for value in weights)
        kind = weights[0].dtype if weights else next(iter(self._dtypes.values()))
        self.info = EngineInfo("eager", Precision.of(kind) or Precision.FP32, device, None, size)

    def _compute(self, cast: dict[str, torch.Tensor]) -> torch.Tensor:
        try:
            with torch.no_grad(), torch.autocast(self.info.device.type, enabled=False), self._lock:
                return self._run(**cast)
        except Exception as error:  # modules, torch and its compiler each raise their own
            shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in cast.items())
            raise ZeusError(
                f"eager: got {shapes}, at which {type(self._module).__name__} fails "
                f"({say_cause(error)}); expected sizes that it takes. Change them."
            ) from error

    def _release(self) -> None:
        self._module = self._forward = self._run = None

    def _call(self, **inputs: torch.Tensor) -> torch.Tensor:
        output = self._forward(**self._nest(inputs), **self._options)
        return output if isinstance(output, torch.Tensor) else output[0]

    def _find_addresses(self) -> tuple[int, ...]:
        """Of parameters and buffers; by hand, since ``parameters()`` takes milliseconds over a large model."""
        found: list[int] = []
        left = [self._module]
        while left:
            module = left.pop()
            left += (child for child in module._modules.values() if child is not None)
            for own in (module._parameters, module._buffers):
                found += (weight.data_ptr() for weight in own.values() if weight is not None)
        return tuple(found)
