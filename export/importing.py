"""From a denoiser that others exported or compiled to an ordinary bundle."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.folder import STEPS, list_files, open_folder, seal, write_solvers
from zeus_trt.export.foreign_findings import Findings, find_out
from zeus_trt.export.foreign_graph import read_foreign
from zeus_trt.export.foreign_model import ForeignModel
from zeus_trt.export.foreign_package import read_package
from zeus_trt.export.foreign_plan import PLANS, read_plan
from zeus_trt.export.foreign_program import is_compiled, read_program
from zeus_trt.export.foreign_trial import Trial
from zeus_trt.export.foreign_wiring import choose_sizes, read_examples, wire
from zeus_trt.export.parameterization import Parameterization
from zeus_trt.runtime import Session
from zeus_trt.runtime.bundle.border import KINDS, READS
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_trust import TRUST_ADVICE, check_trust
from zeus_trt.runtime.bundle.manifest import SCHEDULER_FILE, Manifest
from zeus_trt.runtime.bundle.tensor_spec import OUTPUT_NAME, TensorSpec
from zeus_trt.runtime.scheduler import build_scheduler, read_config

_TRIED = 20  # solver steps whose timesteps the graph is tried at
_SAMPLED = 4
_DEFAULTS = {"flow": "FlowMatchEulerDiscreteScheduler", "edm": "EDMEulerScheduler"}
_NAMES = {"sigma": "sigma", "sigmas": "sigma", "log_sigma": "log-sigma"}  # of inputs that say what they are


@dataclass(frozen=True)
class ImportOptions:
    """What a graph or an engine does not say of itself.

    Args:
        latents: The name of its noisy latents.
        timestep: The name of its time.
        timestep_is: What it reads there: ``timestep``, what the scheduler passes (c_noise of EDM); ``sigma`` or
            ``log-sigma``. By default ``sigma`` or ``log-sigma`` where the input is named so, else ``timestep``.
        parameterization: What it returns: ``epsilon``, ``v``, ``flow``, ``sample`` (the clean latents) or ``edm`` (the
            network of Karras et al., with or without its preconditioning inside, which is measured). By default what
            the scheduler reads.
        scheduler: A diffusers scheduler, the name of its class, or its config, as a file or a folder. By default
            Euler's of the parameterization.
        shape: Of one of the latents, such as (3, 32, 32); needed where the graph leaves a size open.
        inputs: Conditioning to try the graph with, by name; made by default.
        steps: As in ``ExportOptions``.
        overwrite: Replace an existing bundle.
        trust_engines: Load a ``.pt2`` file or an engine, which runs what it says; by default as ``check_trust``.
    """

    latents: str
    timestep: str
    timestep_is: str | None = None
    parameterization: str | None = None
    scheduler: Any = None
    shape: Sequence[int] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    steps: Sequence[int] = STEPS
    overwrite: bool = False
    trust_engines: bool | None = None

    def __post_init__(self) -> None:
        for name, value, known in (
            ("timestep_is", self.timestep_is, READS),
            ("parameterization", self.parameterization, KINDS),
        ):
            if value not in (None, *known):
                raise ZeusError(f"{name}: got {value!r}; expected one of {', '.join(known)}. Choose one of these.")
        if self.latents == self.timestep:
            raise ZeusError(f"timestep: got {self.timestep!r}, which is the latents; expected another input. Name it.")


def import_model(
    path: str | Path, output: str | Path, *, say: Callable[[str], Any] = lambda text: None, **options: Any
) -> Bundle:
    """Makes a bundle of an ONNX graph, a program of ``torch.export``, or an engine, that others made.

    Its inputs, types and axes are read from it. What the solver passes and what it reads are computed around it, in the
    graph of the bundle; or, around an engine, by the runtime: such a bundle has no graph. It is run at two sizes of
    every axis that is dynamic, and for a few solver steps.

    Args:
        path: The .onnx file, whose weights may be in other files beside it; the .pt2 file of ``torch.export.save`` or
            of ``aoti_compile_and_package``; or the .plan, .engine or .trt file of TensorRT or TensorRT-RTX.
        output: The bundle's folder, which appears when everything in it is written and checked.
        say: Called with a sentence on what was found.
        **options: As in ``ImportOptions``.

    Raises:
        ZeusError: A file that does not read, a name that the graph does not have, an output that is not finite or of
            another shape than the latents, or a scheduler that has no use for it.
    """
    asked = ImportOptions(**options)
    path = Path(path)
    model = _read(path, asked)
    reads = asked.timestep_is or _NAMES.get(asked.timestep.lower(), "timestep")
    scheduler = choose_scheduler(asked.scheduler, asked.parameterization, say)
    parameterization = Parameterization.of(scheduler, asked.parameterization, reads)
    scheduler = _set_prediction(scheduler, parameterization)
    with open_folder(Path(output), asked.overwrite) as folder:
        manifest = seal(_write(model, asked, scheduler, parameterization, folder, say), folder)
    return Bundle(Path(output), manifest)


def _read(path: Path, asked: ImportOptions) -> ForeignModel:
    kind = path.suffix.lower()
    is_plan, is_package = kind in PLANS, kind == ".pt2" and is_compiled(path)
    if kind != ".pt2" and not is_plan:
        return read_foreign(path)
    if not check_trust(asked.trust_engines):
        what = "a compiled engine" if is_plan or is_package else "which torch loads with pickle"
        raise ZeusError(
            f"model: got {path.name}, {what}: that runs code of whoever wrote it; expected a file that is data alone. "
            f"Import its ONNX graph, {TRUST_ADVICE}."
        )
    return (read_plan if is_plan else read_package if is_package else read_program)(path, asked.latents)


def choose_scheduler(scheduler: Any, parameterization: str | None, say: Callable[[str], Any]) -> Any:
    """A diffusers scheduler by its class, its config, or the parameterization.

    Raises:
        ZeusError: No such class or file, or a config that does not load.
    """
    if hasattr(scheduler, "set_timesteps"):
        return scheduler
    if scheduler is None:
        name = _DEFAULTS.get(parameterization or "", "EulerDiscreteScheduler")
        say(f"no scheduler was given: {name} with its default config")
        return build_scheduler({"_class_name": name})
    path = Path(scheduler)
    for file in (path, path / Path(SCHEDULER_FILE).name, path / SCHEDULER_FILE):
        if file.is_file():
            return build_scheduler(read_config(file))
    if re.fullmatch(r"\w+Scheduler", str(scheduler)):
        return build_scheduler({"_class_name": str(scheduler)})
    raise ZeusError(
        f"scheduler: got {scheduler}; expected a scheduler's config (a file or its folder), or a class of diffusers "
        "such as DDIMScheduler. Change it."
    )


def _set_prediction(scheduler: Any, parameterization: Parameterization) -> Any:
    if "prediction_type" not in scheduler.config:
        return scheduler
    return type(scheduler).from_config(scheduler.config, prediction_type=parameterization.prediction_type)


def _write(
    model: ForeignModel,
    asked: ImportOptions,
    scheduler: Any,
    parameterization: Parameterization,
    folder: Path,
    say: Callable[[str], Any],
) -> Manifest:
    """Writes denoiser and solvers, and runs them; returns the manifest without versions and files."""
    weights, wiring = model.digest, wire(model, asked.latents, asked.timestep)
    examples = read_examples(wiring, asked.inputs)
    sizes = choose_sizes(wiring, asked.shape, examples, model.sizes)
    scheduler.set_timesteps(_TRIED)
    trial = Trial(model.prepare(folder), parameterization, scheduler.timesteps.cpu(), examples)
    found = find_out(trial, wiring, sizes, say)
    manifest = _describe(model, found, weights)
    manifest = found.trial.model.complete(manifest, found, folder)
    write_solvers(scheduler, asked.steps, folder)
    _sample(found, folder, manifest)
    return manifest


def _describe(model: ForeignModel, found: Findings, weights: str) -> Manifest:
    """The manifest, which has neither a graph nor an engine yet."""
    said = ("schedule", "returns", "reads", "sigma_data", "num_train")
    wiring, parameterization = found.wiring, found.trial.parameterization
    return Manifest(
        model=model.path.stem,
        component="denoiser",
        denoiser_class="ImportedGraph" if model.backend == "onnxruntime" else "ImportedEngine",
        denoiser_config={name: getattr(parameterization, name) for name in said},
        weights_sha256=weights,
        prediction_type=parameterization.prediction_type,
        inputs=wiring.inputs,
        output=TensorSpec(OUTPUT_NAME, "float32", wiring.latents.axes, "output"),
        symbols=found.symbols,
        labels=None,
        graphs=(),
        versions={},
        timestep_scale=parameterization.timestep_scale,
        relations=wiring.relations,
    )


def _sample(found: Findings, folder: Path, manifest: Manifest) -> None:
    """Runs a few solver steps; raises ZeusError where the scheduler refuses the output, or the result is not finite."""
    inputs = found.trial.make_inputs(found.wiring, found.sizes)
    noise, _ = inputs.pop(manifest.latents.name), inputs.pop("timestep")
    manifest = replace(manifest, files=list_files(folder))
    try:
        with Session(Bundle(folder, manifest), backend=manifest.base_backend, trust_engines=True) as session:
            session.generate(inputs, num_steps=_SAMPLED, ratio=0, noise=noise)
    except (NotImplementedError, ValueError, TypeError) as error:  # of the scheduler's own step
        raise ZeusError(
            f"scheduler: got one that does not step this denoiser ({say_cause(error)}); expected one for its "
            "parameterization. Choose another."
        ) from error
