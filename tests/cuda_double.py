"""A TEST DOUBLE of torch.cuda's streams, events and graphs, on the CPU: nothing that it says is a GPU's word.

Everything runs at once, in order. A graph is the list of operators that ran while it was captured: replaying runs them
again on the same memory, so that a graph whose weights moved reads where they were, as on a GPU. Streams come from
pools of 32 per priority, as torch's do: the 33rd is the first again. A second capture in the process is refused, as is
one on a stream that another thread works on.
"""

import contextlib
import itertools
import threading

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_POOL = 32
_local = threading.local()
_numbers = itertools.count()
_current = {}  # by thread
_capturing = threading.Lock()


class Stream:
    """Everything on it has run already."""

    def __init__(self, device=None, priority=0):
        self.device, self.place = device, (priority, next(_numbers) % _POOL)

    def wait_event(self, event):
        assert event.is_recorded, "a stream waits for an event that was never recorded"

    def wait_stream(self, stream):
        assert isinstance(stream, Stream)

    def synchronize(self):
        assert not getattr(_local, "is_capturing", False), "a capture refuses to wait"


class Event:
    """Records that it was recorded."""

    def __init__(self, enable_timing=False):
        self.is_recorded = False

    def record(self, stream=None):
        self.is_recorded = True


class CUDAGraph:
    """Operators with their arguments and results."""

    def __init__(self):
        self.calls = []

    def replay(self):
        for operator, args, kwargs, results in self.calls:
            again = pytree.tree_leaves(operator(*args, **kwargs))
            for old, new in zip(results, again, strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class _Recorder(TorchDispatchMode):
    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        with torch.no_grad():  # aliases: a parameter that is given other data leaves its own memory behind
            kept = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.detach(), (args, kwargs))
        self.calls.append((func, *kept, pytree.tree_leaves(result)))
        return result


@contextlib.contextmanager
def graph(cuda_graph, pool=None, stream=None, capture_error_mode="global"):
    """Captures on a stream of its own; another thread's operators are not captured."""
    assert capture_error_mode == "thread_local" or stream is None, "other threads may allocate"
    others = {place for thread, place in _current.items() if thread != threading.get_ident()} - {None}
    assert stream is None or stream.place not in others, "a capture on another thread's stream"
    assert _capturing.acquire(blocking=False), "two captures at once"
    _local.is_capturing = True
    try:
        with _Recorder(cuda_graph.calls):
            yield
    finally:
        _local.is_capturing = False
        _capturing.release()


def current_stream(device=None):
    """The thread's; at first the default one, which is none of the pool."""
    if not hasattr(_local, "stream"):
        _local.stream = Stream(device)
        _local.stream.place = None
    return _local.stream


@contextlib.contextmanager
def stream(new):
    """Makes a stream the thread's."""
    old = current_stream()
    _enter(new)
    try:
        yield
    finally:
        _enter(old)


def _enter(new):
    _local.stream = new
    _current[threading.get_ident()] = new.place


def install(monkeypatch):
    """Puts the double in the place of torch.cuda's own."""
    _current.clear()
    for name in ("Stream", "Event", "CUDAGraph", "graph", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, globals()[name])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
