"""What engines are built for, as seen from here."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Processor:
    """A GPU or the CPU.

    Args:
        name: The GPU's name; None for the CPU.
        sm: Compute capability such as ``sm_89``, or ``cpu-avx2``.
    """

    name: str | None
    sm: str


def find_gpu(device: str | torch.device = "cuda") -> Processor | None:
    """The GPU that torch uses as ``device``; None without one."""
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return Processor(torch.cuda.get_device_name(device), f"sm_{major}{minor}")


def find_cpu() -> Processor:
    """The CPU, by the vector instructions that compiled code may use."""
    return Processor(None, f"cpu-{torch.backends.cpu.get_cpu_capability().lower()}")
