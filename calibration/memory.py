"""Peak memory of a piece of work."""

import contextlib
import resource
import sys
from pathlib import Path

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")


def reset_peak_memory() -> None:
    """Starts a new peak where the system allows it (Linux); elsewhere the peak is that of the process."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")


def peak_memory_mib() -> float:
    """Peak resident memory of this process since the last reset, in MiB."""
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
