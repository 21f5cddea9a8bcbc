"""From a graph that others exported to an ordinary bundle."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.folder import STEPS, list_files, open_folder, seal, write_solvers
from zeus_trt.export.foreign_border import store_weights, write_border
from zeus_trt.export.foreign_graph import BATCH, ForeignGraph, read_foreign
from zeus_trt.export.foreign_program import is_compiled, read_program
from zeus_trt.export.foreign_trial import Trial
from zeus_trt.export.foreign_wiring import Wiring, choose_sizes, read_examples, wire
from zeus_trt.export.graph import write_metadata
from zeus_trt.export.parameterization import KINDS, READS, Parameterization
from zeus_trt.runtime import Session
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_trust import TRUST_ADVICE, check_trust
from zeus_trt.runtime.bundle.manifest import SCHEDULER_FILE, Graph, Manifest
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import OUTPUT_NAME, SymbolSpec, TensorSpec
from zeus_trt.runtime.scheduler import build_scheduler, read_config

_TRIED = 20  # solver steps whose timesteps the graph is tried at
_SAMPLED = 4
_DEFAULTS = {"flow": "FlowMatchEulerDiscreteScheduler", "edm": "EDMEulerScheduler"}
_NAMES = {"sigma": "sigma", "sigmas": "sigma", "log_sigma": "log-sigma"}  # of inputs that say what they are


@dataclass(frozen=True)
class ImportOptions:
    """What a graph does not say of itself.

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
        trust_engines: Load a ``.pt2`` file, which runs what it says; by default as ``check_trust``.
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
    """Makes a bundle of an ONNX graph, or a program of ``torch.export``, that others exported.

    Its inputs, types and axes are read from the graph. What the solver passes and what it reads are computed around it,
    in the graph of the bundle. It is run at two sizes of every axis that is dynamic, and for a few solver steps.

    Args:
        path: The .onnx file, whose weights may be in other files beside it; or the .pt2 file of ``torch.export.save``.
        output: The bundle's folder, which appears when everything in it is written and checked.
        say: Called with a sentence on what was found.
        **options: As in ``ImportOptions``.

    Raises:
        ZeusError: A file that does not read, a name that the graph does not have, an output that is not finite or of
            another shape than the latents, or a scheduler that has no use for it.
    """
    asked = ImportOptions(**options)
    path = Path(path)
    graph = _read(path, asked)
    reads = asked.timestep_is or _NAMES.get(asked.timestep.lower(), "timestep")
    scheduler = choose_scheduler(asked.scheduler, asked.parameterization, say)
    parameterization = Parameterization.of(scheduler, asked.parameterization, reads)
    scheduler = _set_prediction(scheduler, parameterization)
    with open_folder(Path(output), asked.overwrite) as folder:
        manifest = seal(_write(graph, asked, scheduler, parameterization, folder, say), folder)
    return Bundle(Path(output), manifest)


def _read(path: Path, asked: ImportOptions) -> ForeignGraph:
    kind = path.suffix.lower()
    if kind in (".plan", ".engine", ".trt") or (kind == ".pt2" and is_compiled(path)):
        raise ZeusError(
            f"model: got {path.name}, a compiled engine; expected the program or the graph that it was compiled from, "
            "since a bundle computes what its solver passes and reads inside of its graph. Import that, and build its "
            "engine."
        )
    if kind != ".pt2":
        return read_foreign(path)
    if not check_trust(asked.trust_engines):
        raise ZeusError(
            f"model: got {path.name}, which torch loads with pickle: that runs code of whoever wrote it; expected a "
            f"file that is data alone. Import its ONNX graph, {TRUST_ADVICE}."
        )
    return read_program(path, asked.latents)


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
    graph: ForeignGraph,
    asked: ImportOptions,
    scheduler: Any,
    parameterization: Parameterization,
    folder: Path,
    say: Callable[[str], Any],
) -> Manifest:
    """Writes graph and solvers, and runs them; returns the manifest without versions and files."""
    kind, weights = Graph(graph.precision), graph.digest
    file = folder / kind.file
    file.parent.mkdir(parents=True)
    wiring = wire(graph, asked.latents, asked.timestep)
    examples = read_examples(wiring, asked.inputs)
    sizes = choose_sizes(wiring, asked.shape, examples, graph.sizes)
    store_weights(graph, file)
    scheduler.set_timesteps(_TRIED)
    trial = Trial(graph, file, parameterization, scheduler.timesteps.cpu(), examples)
    wiring = trial.settle(wiring, sizes)
    if wiring.by_rows:
        say("the graph takes a row at a time: its bundle calls it for each")
    others = {BATCH: 2 * sizes[BATCH]} | trial.find_others(wiring, sizes)
    fixed = {name: size for name, size in sizes.items() if name not in others}
    for name, size in fixed.items():
        say(f"{name}: the graph takes no other size than {size}")
    if parameterization.returns == "edm" and trial.is_whole(wiring, sizes):
        say("the graph has EDM's preconditioning inside: it returns clean latents")
        trial = replace(trial, parameterization=replace(parameterization, returns="sample"))
    wiring = wiring.fix(fixed)
    seen = {name: (sizes[name], other) for name, other in others.items()}
    records = [trial.verify(wiring, {name: pair[place] for name, pair in seen.items()}) for place in (0, 1)]
    manifest = _describe(graph, wiring, trial.parameterization)
    said = {spec.name: spec for spec in wiring.symbols}
    symbols = tuple(replace(said.get(name, SymbolSpec(name, ())), observed=observed) for name, observed in seen.items())
    manifest = replace(
        manifest, symbols=symbols, relations=wiring.relations, weights_sha256=weights,
        graphs=(replace(kind, verification=tuple(records)),),
    )  # fmt: skip
    write_border(graph, wiring, trial.parameterization, file)
    write_metadata(file, SizeRules.of(manifest), kind.precision)
    write_solvers(scheduler, asked.steps, folder)
    _sample(trial, wiring, {name: pair[0] for name, pair in seen.items()}, folder, manifest)
    return manifest


def _describe(graph: ForeignGraph, wiring: Wiring, parameterization: Parameterization) -> Manifest:
    said = ("schedule", "returns", "reads", "sigma_data", "num_train")
    return Manifest(
        model=graph.path.stem,
        component="denoiser",
        denoiser_class="ImportedGraph",
        denoiser_config={name: getattr(parameterization, name) for name in said},
        weights_sha256="",
        prediction_type=parameterization.prediction_type,
        inputs=wiring.inputs,
        output=TensorSpec(OUTPUT_NAME, "float32", wiring.latents.axes, "output"),
        symbols=(),
        labels=None,
        graphs=(),
        versions={},
        timestep_scale=parameterization.timestep_scale,
    )


def _sample(trial: Trial, wiring: Wiring, sizes: Mapping[str, int], folder: Path, manifest: Manifest) -> None:
    """Runs a few solver steps; raises ZeusError where the scheduler refuses the output, or the result is not finite."""
    inputs = trial.make_inputs(wiring, sizes)
    noise, _ = inputs.pop(wiring.latents.name), inputs.pop("timestep")
    manifest = replace(manifest, files=list_files(folder))
    try:
        with Session(Bundle(folder, manifest), backend="onnxruntime") as session:
            session.generate(inputs, num_steps=_SAMPLED, ratio=0, noise=noise)
    except (NotImplementedError, ValueError, TypeError) as error:  # of the scheduler's own step
        raise ZeusError(
            f"scheduler: got one that does not step this graph ({say_cause(error)}); expected one for its "
            "parameterization. Choose another."
        ) from error
