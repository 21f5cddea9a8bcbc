"""The machine and the libraries that a figure was made with."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("zeus-trt", "torch", "diffusers", "onnx", "onnxscript", "onnxruntime")


def find_version(package: str) -> str | None:
    """The installed version of ``package``, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_machine() -> dict[str, str]:
    """Processor, GPU, Python and library versions, by name."""
    import torch

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    libraries = {name: find_version(name) or "missing" for name in LIBRARIES}
    return {"cpu": _describe_cpu(), "gpu": gpu, "python": platform.python_version(), **libraries}


def _describe_cpu() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {cores} cores"
