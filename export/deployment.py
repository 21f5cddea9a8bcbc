"""Deployments: what a C++ program needs of a bundle, in one folder that needs nothing else."""

import json
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from zeus_trt import __version__, runtime
from zeus_trt.errors import ZeusError, escape
from zeus_trt.export.build import BACKENDS, check_precision
from zeus_trt.files import digest_file, write_folder_atomically
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_file import copy_engine
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR, EngineFile, digest_model, list_engines
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, EngineSpec, explain
from zeus_trt.runtime.bundle.engine_trust import NOT_BUILT_HERE, TRUST_ADVICE
from zeus_trt.runtime.bundle.manifest import FILE_NAME as MANIFEST
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.solver import Solver
from zeus_trt.zeus_graph import Plan, SamplingProgram, load_plan

ONNX_RUNTIME = "onnxruntime"
SUMS = "SHA256SUMS"
ENGINES = ("engine", "quantized")
"""Folders of the engine, and of the one that answers the ``Q`` steps of plans."""


@dataclass(frozen=True)
class PackedProgram:
    """A sampling program of a deployment.

    Args:
        file: Its place in the folder.
        num_steps: Solver steps.
        plan: What it was made of: ``ratio 3``, or the name of a file.
        steps: The step plan, a letter per evaluation.
        nfe: Its full steps.
    """

    file: str
    num_steps: int
    plan: str
    steps: str
    nfe: int

    @property
    def bound(self) -> float:
        """Evaluations / full steps: no speed-up can be larger."""
        return len(self.steps) / self.nfe


def find_headers() -> Path:
    """The folder of the C++ headers, which is also that of ``zeus_trtConfig.cmake``."""
    return Path(runtime.__file__).parent / "cpp"


def write_deployment(
    bundle: str | Path | Bundle,
    output: Path,
    backend: str,
    *,
    steps: Sequence[int] = (50,),
    ratios: Sequence[int] = (0, 2, 3, 4),
    plans: Sequence[str | Path] = (),
    precision: str | None = None,
    overwrite: bool = False,
) -> tuple[PackedProgram, ...]:
    """Writes engine, sampling programs, headers, checksums and a README to a new folder.

    Plans with ``Q`` bring the quantized engine too.

    Args:
        bundle: A folder written by ``zeus-trt export``.
        output: The folder to make; whole or not there at all.
        backend: ``onnxruntime``, which takes the bundle's graph, or one that ``zeus-trt build`` has built an engine of.
        steps: Numbers of solver steps, each with every ratio.
        ratios: Skipped steps after each full one.
        plans: Files of plans, calibrated or written, each for its own number of steps.
        precision: Of the graph; by default the first of the bundle.
        overwrite: Replace a folder that exists.

    Raises:
        ZeusError: No such bundle, backend or engine, a denoiser that no solver can step, a solver that cannot be
            folded, a plan of another model, one with ``Q`` where nothing is quantized, two programs of one name, or a
            place that cannot be written.
    """
    opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    manifest = opened.manifest
    manifest.find_graph(precision)  # refuses a bundle without one
    if manifest.unsteppable:
        raise ZeusError(
            f"denoiser: got one that no solver can step, since {manifest.unsteppable}; expected one of the solver's "
            "latents and timestep. Export another."
        )
    programs = dict(_fold_all(opened, steps, ratios, plans))
    needs_pair = any("Q" in packed.steps for packed in programs)
    precisions = (precision, opened.find_quantized()) if needs_pair else (precision,)
    graphs = [opened.graph(one) for one in precisions] if backend == ONNX_RUNTIME else []
    engines = [] if graphs else [_find_engine(opened, backend, one) for one in precisions]
    with write_folder_atomically(output, overwrite) as folder:
        shutil.copy(opened.path / MANIFEST, folder)
        for name, engine in zip(ENGINES, engines, strict=False):
            _copy_engine(engine, folder / name)
        for graph in graphs:
            place = folder / graph.relative_to(opened.path).parent
            place.mkdir(parents=True)
            for file in graph.parent.glob(f"{graph.name}*"):
                shutil.copy(file, place)
        for packed, program in programs.items():
            (folder / packed.file).parent.mkdir(exist_ok=True)
            program.save(folder / packed.file)
        _write_sources(folder, backend)
        parts = {
            "records": [engine.record for engine in engines],
            "graphs": [graph.relative_to(opened.path).as_posix() for graph in graphs],
        }
        text = _describe(manifest, backend, tuple(programs), parts)
        (folder / "README.md").write_text(text, encoding="utf-8")
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        lines = [f"{digest_file(folder / name)}  {name}\n" for name in names]
        (folder / SUMS).write_text("".join(lines), encoding="utf-8")
    return tuple(programs)


def _find_engine(bundle: Bundle, backend: str, precision: str | None) -> EngineFile:
    if backend not in BACKENDS:
        raise ZeusError(
            f"backend: got {backend}; expected one of {', '.join((ONNX_RUNTIME, *BACKENDS))}. Choose one of them."
        )
    kind = bundle.manifest.find_graph(precision).precision
    check_precision(kind, backend)
    graph, weights = digest_model(bundle.manifest, backend, precision)
    refused, trust = [], ""
    for engine in sorted(list_engines(bundle.path), key=lambda engine: -engine.path.stat().st_mtime):
        if engine.record and engine.record.spec.backend != backend:
            continue
        reasons = engine.reasons
        if engine.record:
            asked = EngineSpec(backend, "", kind, {}, engine.record.spec.target, graph, weights)
            reasons += explain(engine.record.spec, asked)
        if not reasons:
            return engine
        refused.append(f"{engine.path.parent.name if engine.record else engine.path.name}: {', '.join(reasons)}")
        trust = f", {TRUST_ADVICE}" if reasons == (NOT_BUILT_HERE,) else trust
    options = " --model MODEL" if backend == AOT_INDUCTOR else ""
    options += "" if kind == bundle.manifest.precision else f" --precision {kind}"
    raise ZeusError(
        f"engine: got {'; '.join(refused) or 'none'} in {bundle.path}; expected one of {backend} in {kind}. "
        f"Run `zeus-trt build {shlex.quote(str(bundle.path))} --backend {backend}{options}`{trust}."
    )


def _copy_engine(engine: EngineFile, folder: Path) -> None:
    assert engine.record
    folder.mkdir()
    with copy_engine(engine.path, engine.record) as checked:
        shutil.copy(checked, folder / engine.record.file)
    (folder / FILE_NAME).write_text(engine.record.to_json(), encoding="utf-8")


def _fold_all(
    bundle: Bundle, steps: Sequence[int], ratios: Sequence[int], plans: Sequence[str | Path]
) -> Iterator[tuple[PackedProgram, SamplingProgram]]:
    solver, names = Solver(bundle), set[str]()
    uniform = [
        (f"{num_steps}-r{ratio}", f"ratio {ratio}", num_steps, Plan.uniform(solver.count_evaluations(num_steps), ratio))
        for num_steps in steps
        for ratio in ratios
    ]
    for name, words, num_steps, plan in (*uniform, *(_read_plan(bundle, solver, Path(file)) for file in plans)):
        if name in names:
            raise ZeusError(f"plans: got two programs of the name {name}; expected other names. Rename a file.")
        names.add(name)
        program, _ = solver.choose("program", plan, num_steps)
        assert program
        yield PackedProgram(f"programs/{name}.json", num_steps, words, program.plan, program.nfe), program


def _read_plan(bundle: Bundle, solver: Solver, file: Path) -> tuple[str, str, int, Plan]:
    plan = load_plan(file)
    num_steps = plan.calibration.num_steps if plan.calibration else len(plan)
    if plan.calibration:
        running = {"weights_sha256": bundle.manifest.weights_sha256}
        plan.calibration.check(running, num_steps, solver.program(num_steps).fingerprint)
    return file.stem, file.name, num_steps, plan


def _write_sources(folder: Path, backend: str) -> None:
    """Headers, and for AOTInductor the examples, which build in the folder itself."""
    shutil.copytree(find_headers(), folder / "cpp", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    if backend == AOT_INDUCTOR:
        for file in resources.files("zeus_trt.cpp_examples").iterdir():
            if file.name.endswith((".cpp", ".txt")):
                (folder / file.name).write_bytes(file.read_bytes())


def _describe(manifest: Manifest, backend: str, programs: Sequence[PackedProgram], parts: Mapping[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    template = resources.files("zeus_trt.export").joinpath("deployment.md").read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_finalize)
    words = {"manifest": json.loads(manifest.to_json()), "backend": backend, "engines": ENGINES, **parts}
    return environment.from_string(template).render(words, programs=programs, version=__version__) + "\n"


def _finalize(value: Any) -> Any:
    """Names come from files: no line break or control character gets into the text."""
    return escape(value).replace("|", "\\|") if isinstance(value, str) else value
