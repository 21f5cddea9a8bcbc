"""A bundle as a model repository of NVIDIA's Triton inference server."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from zeus_trt.errors import ZeusError
from zeus_trt.export.triton_config import (
    DENOISER,
    QUANTIZED,
    SAMPLER,
    Served,
    find_max_rows,
    write_denoiser,
    write_sampler,
)
from zeus_trt.files import write_folder_atomically
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_file import check_engine
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR, FOLDER, EngineFile, list_engines
from zeus_trt.runtime.bundle.manifest import FILE_NAME, SCHEDULER_FILE
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.zeus_graph.counts import check_count

DENOISER_BACKENDS = ("onnxruntime", "tensorrt", "python", AOT_INDUCTOR)
"""What runs the denoiser: Triton's own backend for ONNX Runtime or TensorRT; or Triton's Python backend, with the graph
in ONNX Runtime (``python``), or with the bundle's AOTInductor package."""

_CONFIG, _VERSION = "config.pbtxt", "1"
_MODEL = '''"""The code of this model is in the installed zeus-trt."""

from zeus_trt.runtime.triton.{} import TritonPythonModel  # noqa: F401
'''


def package_triton(
    bundle: str | Path | Bundle,
    output: str | Path,
    *,
    denoiser_backend: str = "onnxruntime",
    precision: str | None = None,
    max_rows: int = 16,
    queue_delay: int = 1000,
    trajectories: int = 16,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Writes a model repository of the models ``denoiser`` and ``sampler``, and ``quantized`` for plans with ``Q``.

    The sampler runs in Triton's Python backend, which needs an installed zeus-trt. Its requests are trajectories; their
    full steps are calls of the denoisers, each of which has a dynamic batcher of Triton. ``quantized`` is there where
    the bundle has a quantized graph, and a built engine of it if the backend takes engines.

    Args:
        bundle: A folder written by ``zeus-trt export``.
        output: The repository to make.
        denoiser_backend: One of ``DENOISER_BACKENDS``. ``tensorrt`` and ``aot-inductor`` take an engine of the bundle.
        precision: That of the graph or the engine; by default the first graph's.
        max_rows: Most rows of one call of the denoiser; guidance takes two rows for an image.
        queue_delay: Microseconds that a call may wait for others to join it.
        trajectories: Requests that run at the same time.
        overwrite: Replace a repository that was written so.

    Returns:
        Names of the files that were written.

    Raises:
        ZeusError: An unknown backend or no engine for it, a bundle that no sampling program runs, or a folder that may
            not be replaced.
    """
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    output = Path(output)
    for name, count in (("max_rows", max_rows), ("trajectories", trajectories)):
        check_count(name, count, 1)
    check_count("queue_delay", queue_delay, 0)
    solvers = _list_solvers(bundle)
    denoisers = _find_denoisers(bundle, denoiser_backend, bundle.manifest.find_graph(precision).precision)
    max_rows = min(max_rows, *(served.max_rows or max_rows for served in denoisers.values()))
    max_rows = find_max_rows(bundle.manifest, max_rows)
    if overwrite:
        _check_replaced(output)
    with write_folder_atomically(output, overwrite) as folder:
        configs = {SAMPLER: write_sampler(bundle.manifest, max_rows, trajectories, QUANTIZED in denoisers)}
        _write_model(folder / SAMPLER, {f"bundle/{name}": bundle.path / name for name in solvers}, "sampler")
        for name, served in denoisers.items():
            configs[name] = write_denoiser(bundle.manifest, served, max_rows, queue_delay, name)
            _write_model(folder / name, served.files, served.module)
        for model, config in configs.items():
            (folder / model / _CONFIG).write_text(config, encoding="utf-8")
        return tuple(sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()))


def _list_solvers(bundle: Bundle) -> tuple[str, ...]:
    """The files that a sampler reads."""
    manifest = bundle.manifest
    if manifest.unsteppable:
        raise ZeusError(
            f"denoiser: got one that no solver can step, since {manifest.unsteppable}; expected one of the solver's "
            "latents and timestep. Package another bundle."
        )
    solvers = sorted(name for name in manifest.files if name.startswith("solvers/"))
    if not solvers:
        raise ZeusError(
            "solver: got a bundle that stores no solver; expected one whose scheduler is linear, with a schedule that "
            "does not depend on the size. Export the model with such a scheduler."
        )
    return FILE_NAME, SCHEDULER_FILE, *solvers


def _find_denoisers(bundle: Bundle, backend: str, precision: Precision) -> dict[str, Served]:
    """What Triton runs, by the name of the model."""
    found, quantized = {DENOISER: _find_served(bundle, backend, precision)}, bundle.manifest.quantized
    takes_engines = backend in ("tensorrt", AOT_INDUCTOR)
    if quantized in (None, precision) or (takes_engines and not _list_built(bundle, backend, quantized)):
        return found
    return {**found, QUANTIZED: _find_served(bundle, backend, quantized)}


def _find_served(bundle: Bundle, backend: str, precision: str) -> Served:
    if backend not in DENOISER_BACKENDS:
        names = ", ".join(DENOISER_BACKENDS)
        raise ZeusError(f"denoiser_backend: got {backend!r}; expected one of {names}. Choose one of these.")
    if backend == "onnxruntime":
        graph = bundle.graph(precision)
        files = {file.name: file for file in graph.parent.iterdir() if file.name in (graph.name, f"{graph.name}.data")}
        return Served({"backend": "onnxruntime", "default_model_filename": graph.name}, files)
    engine = None if backend == "python" else _find_engine(bundle, backend, precision)
    record = engine.record if engine else None
    most = record.spec.profile[bundle.manifest.latents.name].max[0] if record else None
    if engine and backend == "tensorrt":
        return Served({"platform": "tensorrt_plan"}, {"model.plan": engine.path}, max_rows=most)
    files = {f"bundle/{name}": bundle.path / name for name in (FILE_NAME, *bundle.manifest.files)}
    if engine:
        folder = engine.path.parent
        files |= {f"bundle/{FOLDER}/{folder.name}/{file.name}": file for file in folder.iterdir()}
    parameters = {"engine": backend if engine else "onnxruntime", "precision": precision}
    return Served({"backend": "python"}, files, "denoiser", parameters, most)


def _find_engine(bundle: Bundle, backend: str, precision: str) -> EngineFile:
    """The newest engine of that kind, built here or trusted, its file checked."""
    engines = _list_built(bundle, backend, precision)
    reasons = [f"{engine.path.parent.name}: {', '.join(engine.reasons)}" for engine in engines if engine.reasons]
    usable = sorted(
        (engine for engine in engines if not engine.reasons), key=lambda engine: engine.path.stat().st_mtime
    )
    for engine in reversed(usable):
        assert engine.record
        if not (changed := check_engine(engine.path, engine.record)):
            return engine
        reasons.append(f"{engine.path.parent.name}: {', '.join(changed)}")
    raise ZeusError(
        f"engine: got {'; '.join(reasons) or f'no {backend} engine in {precision}'}; expected one to package. Run "
        f"`zeus-trt build BUNDLE --backend {backend} --precision {precision}`."
    )


def _list_built(bundle: Bundle, backend: str, precision: str) -> list[EngineFile]:
    return [
        engine
        for engine in list_engines(bundle.path)
        if engine.record and engine.record.spec.backend == backend and engine.record.spec.precision == precision
    ]


def _check_replaced(output: Path) -> None:
    """Raises ZeusError for a folder with anything in it but the models."""
    if not output.exists():
        return
    models = {path.name for path in output.iterdir()} if output.is_dir() else set()
    if models - {QUANTIZED} != {DENOISER, SAMPLER} or not all((output / model / _CONFIG).is_file() for model in models):
        raise ZeusError(
            f"output: got {output}, which has other content than the models {DENOISER} and {SAMPLER}; expected such a "
            "repository to replace. Choose another folder."
        )


def _write_model(folder: Path, files: Mapping[str, Path], module: str | None) -> None:
    version = folder / _VERSION
    version.mkdir(parents=True)
    for name, file in files.items():
        (version / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, version / name)
    if module:
        (version / "model.py").write_text(_MODEL.format(module), encoding="utf-8")
