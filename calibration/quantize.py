"""Adds a quantized graph to a bundle: record, take the ranges, write, compare with the float graph."""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from zeus_trt.calibration.graph_error import GraphError, check_errors, check_samples, measure_errors
from zeus_trt.calibration.quantization_report import FILE_NAME, BlockError, QuantizationReport, StepReport
from zeus_trt.calibration.ranges import collect_ranges
from zeus_trt.calibration.recorded_runs import RecordedRuns
from zeus_trt.calibration.recording import Recording
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.evaluation.workload import SessionWorkload
from zeus_trt.export.folder import add_graph
from zeus_trt.export.graph import write_metadata
from zeus_trt.export.layers import FLOAT, WHOLE, Layer, list_layers
from zeus_trt.export.quantizer import Ranges, import_quantizer, quantize_graph
from zeus_trt.files import write_folder_atomically
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine
from zeus_trt.runtime.bundle.manifest import Graph, Verification, graph_name
from zeus_trt.runtime.bundle.precision import QUANTIZED, Precision
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.engines.choose import choose_engine
from zeus_trt.runtime.request import check_count, check_run
from zeus_trt.runtime.scheduler import name_solver
from zeus_trt.zeus_graph import Plan, json_file

_SOURCES = (Precision.FP32, Precision.FP16)


@dataclass(frozen=True)
class QuantizeOptions:
    """How a graph is quantized.

    Args:
        precision: ``int8``, or ``fp8``, which is E4M3.
        steps: Solver steps of the runs.
        solver: As ``name_solver`` takes it.
        plan: The plan that will run: the ranges are those of its full steps, or of its steps ``Q`` if it has any.
            Every step by default.
        num_trajectories: Samples that the ranges are taken from.
        num_held_out: Samples after these, on which the graph is compared with the float graph.
        keep: Patterns of layers that stay in float: of parameters (``down_blocks.0.*``), modules, blocks or nodes.
        min_psnr: Least mean PSNR in dB of finished samples to those of the float graph.
        max_error: Largest relative error of the outputs of a step.
        overwrite: Replace a graph of this precision.
        on_calls: Called after every sample with its number of full steps.

    Raises:
        ZeusError: No such precision, or a number out of range.
    """

    precision: str = "int8"
    steps: int = 50
    solver: Any = "default"
    plan: Plan | None = None
    num_trajectories: int = 16
    num_held_out: int = 8
    keep: Sequence[str] = ()
    min_psnr: float = 30.0
    max_error: float = 0.5
    overwrite: bool = False
    on_calls: Callable[[int], Any] | None = None

    def __post_init__(self) -> None:
        if self.precision not in QUANTIZED:
            raise ZeusError(f"precision: got {self.precision}; expected {' or '.join(QUANTIZED)}. Choose one of them.")
        object.__setattr__(self, "solver", name_solver(self.solver))
        for name in ("num_trajectories", "num_held_out"):
            check_count(name, getattr(self, name), 1)
        check_run(self.steps, self.num_trajectories + self.num_held_out, 0)

    @property
    def recorded(self) -> range:
        """Numbers of the samples that the ranges are taken from."""
        return range(self.num_trajectories)

    @property
    def held_out(self) -> range:
        """Numbers of the samples that the graph is measured on."""
        return range(self.num_trajectories, self.num_trajectories + self.num_held_out)


@dataclass(frozen=True)
class _Source:
    """The float graph of a workload's bundle, its layers, and its runs."""

    workload: SessionWorkload | PipelineWorkload
    bundle: Bundle
    precision: Precision
    onnx: Path
    layers: tuple[Layer, ...]
    runs: RecordedRuns

    def find_ranges(self, recording: Recording) -> dict[str, tuple[float, float]]:
        names = dict.fromkeys(layer.activation for layer in self.layers if layer.treatment == WHOLE)
        return collect_ranges(self.onnx, tuple(names), map(recording.read_inputs, recording.calls))

    def write(self, layers: Sequence[Layer], ranges: Ranges, precision: Precision, output: Path) -> OnnxRuntimeEngine:
        """Writes the quantized graph, and opens it on the CPU."""
        quantize_graph(self.onnx, layers, ranges, precision, output)
        write_metadata(output, SizeRules.of(self.bundle.manifest), precision)
        return OnnxRuntimeEngine(output)


def quantize(workload: SessionWorkload | PipelineWorkload, options: QuantizeOptions) -> QuantizationReport:
    """Adds a quantized graph to a workload's bundle, if it is near enough to the float graph.

    Runs samples in full, takes the ranges of activations from the calls at the steps that the plan runs, and compares
    both graphs on held-out samples: the outputs of every step on the same inputs, and the finished samples. The bundle
    is replaced at once, at the end; any error leaves it as it was.

    Args:
        workload: The model, its samples and its guidance.
        options: How.

    Raises:
        ZeusError: There is such a graph, no float graph to begin with, nothing to quantize, a step without a recorded
            call, or the new graph is too far from the float graph.
    """
    source, precision = _open(workload, options), Precision(options.precision)
    bundle = source.bundle
    with (
        write_folder_atomically(bundle.path, overwrite=True) as folder,
        TemporaryDirectory(prefix="zeus-trt-") as scratch,
    ):
        recording, _ = source.runs.record(options.recorded, Path(scratch) / "recorded")
        ranges = source.find_ranges(recording)
        onnx = folder / graph_name(precision)
        onnx.parent.mkdir(parents=True)
        engine = source.write(source.layers, ranges, precision, onnx)
        held_out, images = source.runs.record(options.held_out, Path(scratch) / "held_out")
        errors = measure_errors(engine, held_out)
        check_errors(errors, options.max_error)
        psnr = check_samples(source.runs.run(engine, options.held_out), images, options.min_psnr)
        engine.close()
        report = _report(source, options, recording, ranges, errors, psnr, onnx)
        onnx.with_name(FILE_NAME).write_text(report.dump(), encoding="utf-8")
        add_graph(bundle, _describe(report, errors, tuple(images.shape)), folder)
    return report


def measure_blocks(workload: SessionWorkload | PipelineWorkload, options: QuantizeOptions) -> tuple[BlockError, ...]:
    """The error of a graph of which one block alone is quantized, block by block; the bundle stays as it is.

    Returns:
        The blocks, the largest error first.

    Raises:
        ZeusError: As ``quantize``, but for the comparison.
    """
    source, precision = _open(workload, replace(options, overwrite=True)), Precision(options.precision)
    blocks = dict.fromkeys(layer.block for layer in source.layers if layer.treatment != FLOAT)
    found = []
    with TemporaryDirectory(prefix="zeus-trt-") as scratch:
        recording, _ = source.runs.record(options.recorded, Path(scratch) / "recorded")
        ranges = source.find_ranges(recording)
        held_out, _ = source.runs.record(options.held_out, Path(scratch) / "held_out")
        for block in blocks:
            layers = [layer if layer.block == block else replace(layer, treatment=FLOAT) for layer in source.layers]
            with (
                TemporaryDirectory(dir=scratch) as folder,
                source.write(layers, ranges, precision, Path(folder) / "denoiser.onnx") as engine,
            ):
                error = measure_errors(engine, held_out).relative
            found.append(BlockError(block, sum(layer.treatment != FLOAT for layer in layers), error))
    return tuple(sorted(found, key=lambda one: -one.error))


def _open(workload: SessionWorkload | PipelineWorkload, options: QuantizeOptions) -> _Source:
    import onnx as library

    bundle = workload.bundle
    if bundle is None:
        raise ZeusError("bundle: got a pipeline alone; expected its bundle too. Give both.")
    manifest = bundle.manifest
    manifest.find_graph()  # refuses a bundle without one
    import_quantizer()
    there = [graph.precision for graph in manifest.graphs]
    if options.precision in there and not options.overwrite:
        raise ZeusError(
            f"precision: got {options.precision} for a bundle that has such a graph; expected another. Overwrite it, "
            "or choose another precision."
        )
    precision = next((one for one in there if one in _SOURCES), None)
    if precision is None:
        raise ZeusError(
            f"bundle: got one with graphs in {', '.join(there)}; expected fp32 or fp16 among them, which ONNX Runtime "
            "computes. Export the model in one of these."
        )
    onnx, name = bundle.graph(precision), f"graphs/{precision}/parameters.json"
    known = json.loads(bundle.read(name))["parameters"] if name in manifest.files else {}
    parameters = {place["initializer"]: parameter for parameter, place in known.items()}
    model = library.load(str(onnx), load_external_data=False)
    layers = list_layers(model, manifest, parameters, options.keep)
    engine, _ = choose_engine(bundle, "onnxruntime", precision=precision)
    runs = RecordedRuns(workload, engine, options.steps, options.solver, options.plan, options.on_calls)
    return _Source(workload, bundle, precision, onnx, layers, runs)


def _report(
    source: _Source,
    options: QuantizeOptions,
    recording: Recording,
    ranges: Ranges,
    errors: GraphError,
    psnr: float,
    onnx: Path,
) -> QuantizationReport:
    calls = Counter(call.step for call in recording.calls)
    steps = []
    for step in source.runs.steps:
        own = [call for call in recording.calls if call.step == step]
        branches = tuple(dict.fromkeys(call.branch for call in own))
        steps.append(StepReport(step, own[0].timestep, calls[step], branches, errors.steps[step]))

    def measure(path: Path) -> int:
        return sum(file.stat().st_size for file in (path, Path(f"{path}.data")) if file.is_file())

    return QuantizationReport(
        options.precision, source.precision, options.steps, options.solver, source.runs.plan.steps,
        json_file.plain(source.workload.describe()), tuple(options.recorded), tuple(options.held_out),
        tuple(options.keep), tuple(steps), ranges, {layer.name: layer.treatment for layer in source.layers},
        psnr if isfinite(psnr) else None, measure(onnx), measure(source.onnx),
    )  # fmt: skip


def _describe(report: QuantizationReport, errors: GraphError, shape: tuple[int, ...]) -> Graph:
    worst = max(report.steps, key=lambda step: step.error)
    setting = {"reference": report.source, "step": worst.step}
    verification = Verification("onnxruntime", errors.shape, "float32", errors.largest, worst.error, setting)
    return Graph(Precision(report.precision), report.keep, (verification,))
