"""TensorRT and TensorRT-RTX engines, built in a child process."""

import json
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.files import write_atomically
from zeus_trt.runtime.bundle.engine_record import EngineSpec
from zeus_trt.runtime.engines.hardware import find_gpu
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

CHILD = Path(__file__).with_name("tensorrt_child.py")
REPORT = "zeus-trt: "

Progress = Callable[[str, float], None]  # what the builder is at, and how far it has come: 0..1


@dataclass(frozen=True)
class TensorRTOptions:
    """How TensorRT builds.

    Args:
        optimization_level: 0 (fast to build) to 5 (fast to run); None leaves it to TensorRT.
        tf32: Round float32 factors to TF32; faster, and 1e-3 off.
        weight_streaming: Weights may stay in host memory.
        refittable: Weights can be replaced later; TensorRT-RTX needs a GPU to build so.
        version_compatible: Later versions of the same major load it; TensorRT only.
        hardware_compatible: Every GPU from sm_80 on runs it; TensorRT only.
    """

    optimization_level: int | None = None
    tf32: bool = False
    weight_streaming: bool = False
    refittable: bool = False
    version_compatible: bool = False
    hardware_compatible: bool = False


def check_options(backend: str, options: TensorRTOptions) -> None:
    """Refuses what ``backend`` would ignore or die of.

    Raises:
        ZeusError: An option that TensorRT-RTX has not, or not here, or a level out of range.
    """
    level = options.optimization_level
    if level is not None and not 0 <= level <= 5:
        raise ZeusError(f"optimization_level: got {level}; expected 0..5. Choose one of them.")
    for name in ("version_compatible", "hardware_compatible"):
        if backend == "tensorrt-rtx" and getattr(options, name):
            raise ZeusError(
                f"{name}: got it for tensorrt-rtx, which has no such engines; expected it for tensorrt only. "
                "Leave it out, and name every GPU that the engine shall run on."
            )
    if backend == "tensorrt-rtx" and options.refittable and find_gpu() is None:
        raise ZeusError(
            "refittable: got it on a machine without a GPU; expected one, which tensorrt-rtx compiles such engines on. "
            "Leave it out, or build where there is one."
        )


def build_tensorrt(
    onnx: Path, spec: EngineSpec, output: Path, timing_cache: Path | None = None, on_progress: Progress | None = None
) -> None:
    """Builds the engine of ``spec`` and writes it to ``output``.

    Args:
        onnx: The strongly typed graph; its weights are beside it.
        spec: What to build.
        output: The engine file.
        timing_cache: Measured kernel times to start from and to add to; unchanged if the build fails. TensorRT-RTX
            times nothing while it builds, and has none.
        on_progress: Called a few times a second; what it raises ends the child and the build.

    Raises:
        ZeusError: A package is missing, the parser or the builder refuses the graph, or the builder crashes.
        OSError: A file cannot be written.
    """
    module = import_tensorrt(spec.backend).__name__
    if find_spec("polygraphy") is None:
        raise ZeusError(
            f"{spec.backend}: got no polygraphy; expected it for building. Install it: pip install polygraphy."
        )
    with TemporaryDirectory(prefix=".build.", dir=output.parent) as folder:
        fresh_cache = None
        if timing_cache and spec.backend != "tensorrt-rtx":
            fresh_cache = Path(folder).absolute() / timing_cache.name
            fresh_cache.write_bytes(timing_cache.read_bytes() if timing_cache.is_file() else b"")
        job = {
            "backend": spec.backend,
            "module": module,
            "onnx": str(onnx.absolute()),
            "output": str(output.absolute()),
            "profile": {name: asdict(shapes) for name, shapes in spec.profile.items()},
            "sms": spec.target.sms,
            "options": dict(spec.options),
            "timing_cache": str(fresh_cache) if fresh_cache else None,
        }
        _run_child(spec.backend, job, folder, on_progress or _ignore)
        if timing_cache and fresh_cache:
            with write_atomically(timing_cache) as whole:
                whole.write_bytes(fresh_cache.read_bytes())


def _run_child(backend: str, job: dict[str, Any], folder: str, on_progress: Progress) -> None:
    # By path and through -c: as a module it would load torch first, and as a script its folder would come first
    # when Polygraphy imports.
    start = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    child = subprocess.Popen(
        [sys.executable, "-c", start, str(CHILD), json.dumps(job)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        encoding="utf-8",
        errors="replace",
    )
    assert child.stdout is not None
    log: deque[str] = deque(maxlen=20)
    error = ""
    try:
        for line in child.stdout:
            if not line.startswith(REPORT):
                log.append(line)
                continue
            fields = json.loads(line.removeprefix(REPORT))
            error = fields.get("error", error)
            if "file" in fields:
                raise OSError(*fields["file"])
            if "step" in fields:
                on_progress(fields["step"], fields["done"])
        code = child.wait()
    finally:  # Ctrl-C, or what on_progress raised
        if child.poll() is None:
            child.kill()
            child.wait()
        child.stdout.close()
        if child.stdin:
            child.stdin.close()
    if code:
        raise ZeusError(_explain_failure(backend, code, error or "".join(log)))


def _explain_failure(backend: str, code: int, text: str) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        return (
            f"{backend}: got a builder that died of {name} ({_clean(text) or 'it said nothing'}); expected an engine. "
            "Try another precision, optimization level or version of its library, or more memory."
        )
    return (
        f"{backend}: got a graph or options that the builder refuses ({_clean(text) or f'exit code {code}'}); "
        "expected an engine. Change what it names, or export the model again."
    )


def _clean(text: str) -> str:
    """A builder's own words in one line: no source files, no separators."""
    lines = [re.sub(r"^(\[\w\] )?(\w+\.cpp:\d+: )?", "", line).strip() for line in text.splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("---"))[:400].rstrip(" .")


def _ignore(step: str, done: float) -> None:
    pass
