"""What is installed, and what can build and run here."""

import os
import shutil
import textwrap
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
        advice: How to get the missing part.
    """

    name: str
    package: str
    builds: bool
    runs: bool
    advice: str


@dataclass(frozen=True)
class Diagnosis:
    """The machine, the libraries and the backends.

    Args:
        machine: Facts by name.
        backends: One for each kind of engine.
        problems: Sentences about packages that are in each other's way.
    """

    machine: dict[str, str]
    backends: tuple[Backend, ...]
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict:
        """The diagnosis as JSON data."""
        return asdict(self)

    def to_table(self) -> str:
        """The diagnosis as text for the terminal."""
        width = shutil.get_terminal_size().columns
        lines = [_fit(f"{name:<14}{value}", width) for name, value in self.machine.items()]
        lines += ["", f"{'backend':<14}{'builds':<8}{'runs':<6}package"]
        for backend in self.backends:
            facts = f"{backend.name:<14}{_say(backend.builds):<8}{_say(backend.runs):<6}{backend.package}"
            lines.append(_fit(facts, width, 28))
            if backend.advice:
                lines.append(_fit(" " * 14 + backend.advice, width))
        return "\n".join([*lines, *(_fit(problem, width, 2) for problem in self.problems)])


def examine() -> Diagnosis:
    """Looks at this machine; imports nothing heavier than torch and ONNX Runtime."""
    backends = (
        _examine_onnxruntime(),
        _examine_aot_inductor(),
        _examine_tensorrt("tensorrt", "tensorrt", needs_gpu=True),
        _examine_tensorrt("tensorrt-rtx", "tensorrt-rtx-cu13-bindings", needs_gpu=False),
    )
    return Diagnosis(describe_machine(), backends, _find_problems())


def _can_export() -> bool:
    return all(find_version(name) for name in ("diffusers", "onnx", "onnxscript"))


def _examine_onnxruntime() -> Backend:
    package, runs = _package("onnxruntime", "onnxruntime-gpu"), _has_cpu_provider()
    return Backend("onnxruntime", package, _can_export(), runs, "" if runs else "pip install 'zeus-trt[onnxruntime]'")


def _examine_aot_inductor() -> Backend:
    compiler = bool(shutil.which(os.environ.get("CXX", "g++")))
    advice = "" if compiler else "install a C++ compiler"
    return Backend("aot-inductor", f"torch {find_version('torch')}", _can_export() and compiler, True, advice)


def _examine_tensorrt(name: str, package: str, needs_gpu: bool) -> Backend:
    """TensorRT, or TensorRT-RTX.

    Args:
        name: The backend, and the extra of pip.
        package: The library.
        needs_gpu: Whether building needs the GPU.
    """
    import torch

    gpu, library = torch.cuda.is_available(), bool(find_version(package))
    installed = library and bool(find_version("polygraphy"))
    steps = [] if installed else [f"pip install 'zeus-trt[{name}]'"]
    steps += [] if gpu else ["needs an NVIDIA GPU to run"]
    advice = "; ".join([*steps, "untested on hardware by us"])
    return Backend(name, _package(package), installed and (gpu or not needs_gpu), library and gpu, advice)


def _find_problems() -> tuple[str, ...]:
    """Both packages of ONNX Runtime write one folder: what was installed last wins, and removing one breaks both."""
    both = [name for name in ("onnxruntime", "onnxruntime-gpu") if find_version(name)]
    if len(both) < 2:
        return ()
    return (
        "onnxruntime and onnxruntime-gpu are both installed, and overwrite each other's files. Run `pip uninstall -y "
        "onnxruntime onnxruntime-gpu`, then install one: `pip install onnxruntime`, or with a CUDA GPU `pip install "
        "onnxruntime-gpu`.",
    )


def _fit(line: str, width: int, indent: int = 14) -> str:
    wrapped = textwrap.wrap(
        line, max(width, 40), subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True, replace_whitespace=False,
    )  # fmt: skip
    return "\n".join(wrapped)


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
