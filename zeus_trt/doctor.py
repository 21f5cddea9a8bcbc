"""What is installed, and what can build and run here."""

import io
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
    can_export = all(find_version(name) for name in ("diffusers", "onnx", "onnxscript"))
    later = "not used by this version yet"
    return Diagnosis(
        describe_machine(),
        (
            Backend("eager", f"torch {find_version('torch')}", True, True, "part of torch; the reference of export"),
            Backend(
                "onnxruntime",
                _package("onnxruntime", "onnxruntime-gpu"),
                can_export,
                _has_cpu_provider(),
                "" if _has_cpu_provider() else "pip install onnxruntime",
            ),
            Backend("tensorrt", _package("tensorrt"), False, False, f"pip install 'zeus-trt[tensorrt]'; {later}"),
            Backend(
                "tensorrt-rtx",
                _package("tensorrt-rtx-cu13-bindings"),
                False,
                False,
                f"pip install 'zeus-trt[tensorrt-rtx]'; {later}",
            ),
            Backend("aot-inductor", f"torch {find_version('torch')}", False, False, later),
        ),
    )


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
