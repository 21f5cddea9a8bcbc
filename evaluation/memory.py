"""Peak memory of a piece of work, on the host and on the device."""

import contextlib
import resource
import sys
from pathlib import Path

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def reset_peak_memory() -> None:
    """Starts a new peak where the system allows it (Linux, CUDA); elsewhere the peak is that of the process."""
    import torch

    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_memory_mib() -> float:
    """Peak resident memory of this process since the last reset, in MiB."""
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def peak_device_mib() -> float | None:
    """Peak memory of the current CUDA device since the last reset, in MiB; None without one.

    The peak of torch's allocator, and what is in use outside of it, such as the memory of TensorRT engines (and of
    other processes on the same GPU).
    """
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    outside = max(total - free - torch.cuda.memory_reserved(), 0)
    return (torch.cuda.max_memory_allocated() + outside) / 2**20
