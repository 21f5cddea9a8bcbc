"""What is installed, and what can build and run here."""

import io
import os
import shutil
from dataclasses import asdict, dataclass

from zeus_trt.machine import describe_machine, find_version


@dataclass(frozen=True)
class Backend:
    """One kind of engine, as seen from this machine.

    Args:
        name: The backend's name on the command line.
        package: What it needs, with the version that is installed.
        builds: Whether this version of zeus-trt can build its engines here.
        runs: Whether this version of zeus-trt can run its engines here.
        advice: How to get what is missing.
    """

    name: str
    package: str
    builds: bool
    runs: bool
    advice: str


@dataclass(frozen=True)
class Diagnosis:
    """The machine, the libraries and the backends."""

    machine: dict[str, str]
    backends: tuple[Backend, ...]

    def to_json(self) -> dict:
        """The diagnosis as JSON data."""
        return asdict(self)

    def to_table(self) -> str:
        """The diagnosis as text for the terminal."""
        from rich import box
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        table = Table("backend", "package", "builds here", "runs here", "how to get it", box=box.SIMPLE_HEAD)
        for backend in self.backends:
            table.add_row(
                backend.name, backend.package, _say(backend.builds), _say(backend.runs), escape(backend.advice)
            )
        text = io.StringIO()
        text.writelines(f"{name:<14}{value}\n" for name, value in self.machine.items())
        Console(file=text, width=110).print(table)
        return text.getvalue().rstrip("\n")


def examine() -> Diagnosis:
    """Looks at this machine; imports nothing heavier than torch and ONNX Runtime."""
    import torch

    exports = all(find_version(name) for name in ("diffusers", "onnx", "onnxscript"))
    polygraphy, gpu = bool(find_version("polygraphy")), torch.cuda.is_available()
    tensorrt, rtx = find_version("tensorrt"), find_version("tensorrt-rtx-cu13-bindings")
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    untested = "untested on hardware by us"
    return Diagnosis(
        describe_machine(),
        (
            Backend(
                "onnxruntime",
                _package("onnxruntime", "onnxruntime-gpu"),
                exports,
                _has_cpu_provider(),
                "" if _has_cpu_provider() else "pip install onnxruntime",
            ),
            Backend(
                "aot-inductor",
                f"torch {find_version('torch')}",
                exports and bool(compiler),
                True,
                "" if compiler else "install a C++ compiler",
            ),
            Backend(
                "tensorrt",
                _package("tensorrt"),
                bool(tensorrt and polygraphy and gpu),
                bool(tensorrt and gpu),
                f"{_advise(tensorrt and polygraphy, 'tensorrt', gpu)}{untested}",
            ),
            Backend(
                "tensorrt-rtx",
                _package("tensorrt-rtx-cu13-bindings"),
                bool(rtx and polygraphy),
                bool(rtx and gpu),
                f"{_advise(rtx and polygraphy, 'tensorrt-rtx', gpu)}{untested}",
            ),
        ),
    )


def _advise(installed: object, extra: str, gpu: bool) -> str:
    steps = [] if installed else [f"pip install 'zeus-trt[{extra}]'"]
    steps += [] if gpu else ["needs an NVIDIA GPU to run"]
    return "".join(f"{step}; " for step in steps)


def _has_cpu_provider() -> bool:
    try:
        import onnxruntime
    except ImportError:
        return False
    return "CPUExecutionProvider" in onnxruntime.get_available_providers()


def _package(*names: str) -> str:
    installed = [f"{name} {find_version(name)}" for name in names if find_version(name)]
    return ", ".join(installed) or f"{names[0]}: missing"


def _say(yes: bool) -> str:
    return "yes" if yes else "no"
