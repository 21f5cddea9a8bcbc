"""Replaying a denoiser from CUDA graphs."""

import threading
from collections.abc import Callable, Hashable

import torch

from zeus_trt.runtime.denoiser import Denoiser

_MOST = 4  # graphs, each of which holds the memory of a call
_CAPTURE = threading.Lock()  # torch captures one graph at a time in a process

_Shapes = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


class CudaGraphs:
    """A denoiser, captured once per set of input shapes and replayed; of one call at a time.

    The graphs own their inputs, so a caller's addresses do not matter. What the denoiser itself reads, its weights,
    must stay where it is: all graphs are dropped when ``addresses`` returns another place.

    Untested on hardware in this form; its forerunner in ``benchmarks/large_denoiser.py`` ran on an H100.

    Args:
        denoiser: What is captured. It must not wait for the device.
        device: The CUDA device.
        addresses: Called at each call; returns the addresses of the denoiser's memory.
    """

    def __init__(self, denoiser: Denoiser, device: torch.device, addresses: Callable[[], Hashable] = lambda: None):
        self._denoiser = denoiser
        self._device = device
        self._find_addresses = addresses
        self._addresses = addresses()
        self._graphs: dict[_Shapes, _Graph] = {}
        self._done: torch.cuda.Event | None = None

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Replays the graph of these shapes, capturing it at the first call.

        Returns:
            The model output, a new tensor.
        """
        shapes: _Shapes = tuple((name, tuple(value.shape), value.dtype) for name, value in inputs.items())
        stream = torch.cuda.current_stream(self._device)
        if self._done:  # a call on another stream may still read the graph's memory
            stream.wait_event(self._done)
        if (addresses := self._find_addresses()) != self._addresses:
            self._graphs, self._addresses = {}, addresses
        graph = self._graphs.pop(shapes, None) or _Graph(self._denoiser, inputs, self._device)
        self._graphs[shapes] = graph  # the newest last
        if len(self._graphs) > _MOST:
            del self._graphs[next(iter(self._graphs))]
        output = graph.replay(inputs)
        self._done = torch.cuda.Event()
        self._done.record(stream)
        return output


class _Graph:
    def __init__(self, denoiser: Denoiser, inputs: dict[str, torch.Tensor], device: torch.device):
        # Of the other pool: torch hands streams out in turn, and another thread may be using them.
        side = torch.cuda.Stream(device, priority=-1)
        # Not inference tensors: those could be written in inference mode only.
        with _CAPTURE, torch.inference_mode(False), torch.no_grad():
            side.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(side):
                self._inputs = {name: value.clone() for name, value in inputs.items()}
                denoiser(**self._inputs)  # libraries choose their algorithms, which a capture would refuse
            side.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            # Thread-local: calls of other threads that a capture forbids neither fail nor break it.
            with torch.cuda.graph(self._graph, stream=side, capture_error_mode="thread_local"):
                self._output = denoiser(**self._inputs)

    def replay(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        for name, value in inputs.items():
            self._inputs[name].copy_(value)
        self._graph.replay()
        return self._output.clone()
