"""Verifying a graph in the precision that it was exported in, and tracing its model again."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.agreement import Case, compare, list_all_cases, list_cases
from zeus_trt.export.capture import Capture, capture
from zeus_trt.export.flat import FlatDenoiser, trace_flat
from zeus_trt.export.limits import read_rules
from zeus_trt.export.loading import load_pipeline
from zeus_trt.export.overflow import find_blocks_to_keep, find_nonfinite
from zeus_trt.export.plain_files import without_links
from zeus_trt.export.precision import TOLERANCES, cast_capture, cast_inputs, cast_module
from zeus_trt.export.relaxation import is_special, leave_special
from zeus_trt.export.runs import Network, Settings
from zeus_trt.export.settings import check_sized, choose_settings, fix_text
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.manifest import Manifest, Verification
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine
from zeus_trt.runtime.pipelines.weights_digest import digest_weights

_HALVES = (Precision.FP16, Precision.BF16)


def verify_graph(
    captured: Capture,
    onnx: Path,
    cases: Iterable[Case],
    precision: str = "fp32",
    keep_fp32: Sequence[str] = (),
    tolerance: float | None = None,
) -> tuple[Verification, ...]:
    """Compares a graph with the eager model in float32, of the same weights.

    A half is compared twice: the eager model in that precision, since ONNX Runtime on the CPU computes parts of a
    float16 graph in float32 and hides what overflows, and the graph. A bfloat16 graph is only parsed, since ONNX
    Runtime has no kernels for it on the CPU. A quantized graph is compared with float32 alone.

    Args:
        captured: The call that was exported, with the user's module.
        onnx: The graph.
        cases: Calls to compare.
        precision: That of the graph.
        keep_fp32: Patterns of the modules that stay in float32.
        tolerance: Largest relative error that is accepted; that of the precision by default.

    Raises:
        ZeusError: An output is not finite, the error is above ``tolerance``, or the graph does not load.
    """
    cases, tolerance = tuple(cases), TOLERANCES[precision] if tolerance is None else tolerance
    eager = cast_module(captured.denoiser, torch.float32)
    if precision not in _HALVES:
        backend = "onnxruntime" if precision == Precision.FP32 else f"onnxruntime:{precision}"
        return compare(eager, OnnxRuntimeEngine(onnx), cases, backend, tolerance, leave=captured.leave)
    cast = cast_capture(captured, precision, keep_fp32)
    flat = FlatDenoiser(cast)

    @torch.inference_mode()
    def run_twin(**inputs: torch.Tensor) -> torch.Tensor:
        return flat(*cast_inputs(cast, inputs))

    def explain(case: Case) -> str:
        return _explain(captured, cast, keep_fp32, case, precision)

    check = partial(compare, eager, cases=cases, tolerance=tolerance, explain=explain, leave=captured.leave)
    records = check(engine=run_twin, backend=f"eager-{precision}")
    if precision == "bf16":
        _parse(onnx)
        return records
    return records + check(engine=OnnxRuntimeEngine(onnx), backend="onnxruntime")


def verify_bundle(
    bundle: str | Path | Bundle,
    model: Any,
    *,
    sizes: Sequence[tuple[int, int]] = (),
    arguments: Mapping[str, Any] | None = None,
    settings: Settings | None = None,
    unseen: Sequence[Mapping[str, Any]] = (),
    tolerance: float | None = None,
) -> tuple[Verification, ...]:
    """Compares every graph of a bundle with the eager model once more.

    Args:
        bundle: A folder written by ``zeus-trt export``; it is only read.
        model: What it was exported from: a pipeline, its folder or id, or a bare model folder.
        sizes: Height and width in pixels to compare at, instead of those of the export; pipelines only.
        arguments: Those of the export, if it was given some.
        settings: Those of the export, if it was given some.
        unseen: Changes of the base setting to compare at besides, if ``settings`` are given.
        tolerance: As in ``verify_graph``.

    Returns:
        One record per comparison, graph by graph; the manifest keeps its own. Those of a quantized graph have a backend
        such as ``onnxruntime:int8``.

    Raises:
        ZeusError: No bundle, another model, a size that the model refuses, or what ``verify_graph`` raises.
    """
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    manifest, rules = bundle.manifest, SizeRules.of(bundle.manifest)
    manifest.find_graph()  # refuses a bundle without one
    pipeline = load_pipeline(model) if isinstance(model, str | Path) else model
    if settings is None:
        settings, unseen = _choose_settings(manifest, pipeline, arguments)
    check_sized(pipeline, settings.base, sizes)
    captured = _capture_again(manifest, pipeline, settings)
    if sizes:
        changes = [{"height": height, "width": width} for height, width in sizes]
        cases = tuple(_check_cases(list_cases(captured, pipeline, settings, changes), rules))
    else:
        cases = tuple(list_all_cases(captured, pipeline, settings, unseen, rules))
    return tuple(
        record
        for graph in manifest.graphs
        for record in verify_graph(
            captured, bundle.graph(graph.precision), cases, graph.precision, graph.keep_fp32, tolerance
        )
    )


def choose_trace(
    bundle: str | Path | Bundle, model: Any, arguments: Mapping[str, Any] | None = None
) -> Callable[[], torch.export.ExportedProgram] | None:
    """A function that gives ``build_engine`` the bundle's denoiser as an exported program; None without a model.

    Args:
        bundle: The bundle, or its folder.
        model: What it was exported from, as in ``export_model``.
        arguments: Those of the export, if it was given some.
    """
    if model is None:
        return None

    def trace() -> torch.export.ExportedProgram:
        manifest = (bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)).manifest
        pipeline = load_pipeline(model) if isinstance(model, str | Path) else model
        settings, _ = _choose_settings(manifest, pipeline, arguments)
        captured = _capture_again(manifest, pipeline, settings)
        graph = manifest.find_graph()
        cast = partial(cast_capture, precision=graph.precision, keep_fp32=graph.keep_fp32)
        program = trace_flat(cast(captured))
        other = leave_special(captured, read_rules(captured, program), pipeline, settings)
        return trace_flat(cast(other)) if other and not any(map(is_special, manifest.relations)) else program

    return trace


def _choose_settings(
    manifest: Manifest, pipeline: Any, arguments: Mapping[str, Any] | None
) -> tuple[Settings, tuple[dict[str, Any], ...]]:
    """Those of the export: prompts have one length where no size of the graph is that of a prompt."""
    settings, unseen = choose_settings(pipeline, arguments=arguments)
    settings = settings if manifest.masks else replace(settings, uneven={})
    has_text = any(symbol.name.startswith("prompt") for symbol in manifest.symbols)
    return (settings, unseen) if has_text else fix_text(settings, unseen)


def _capture_again(manifest: Manifest, pipeline: Any, settings: Settings) -> Capture:
    """The call that a bundle was exported from; a model with other weights or inputs is refused."""
    network = Network(not any(isinstance(value, float) for value in manifest.constants.values()))
    is_one = manifest.latents.axes[:1] == (1,)
    captured = capture(pipeline, settings, manifest.component, is_one, network if manifest.layout else None)
    digest = digest_weights(captured.denoiser, manifest.find_graph())[0]
    if digest != manifest.weights_sha256:
        raise ZeusError(
            f"model: got weights with digest {digest[:12]}; expected {manifest.weights_sha256[:12]}, those that "
            f"{manifest.model} was exported from. Give that model, or export this one."
        )
    found, expected = ([spec.name for spec in inputs] for inputs in (captured.inputs, manifest.inputs))
    if found != expected:
        raise ZeusError(
            f"model: got inputs {', '.join(found)}; expected those of the bundle, {', '.join(expected)}. Give the "
            "settings of the export, or export it again."
        )
    return captured


def _check_cases(cases: Iterable[Case], rules: SizeRules) -> Iterator[Case]:
    """The cases; those at sizes that the graph does not take are refused."""
    for case in cases:
        rules.check(case.inputs)
        yield case


def _explain(captured: Capture, cast: Capture, keep_fp32: Sequence[str], case: Case, precision: str) -> str:
    """Where a case stops being finite, and what helps."""
    arguments = cast.nest(cast_inputs(cast, case.inputs))
    first = find_nonfinite(cast.denoiser, lambda: cast.denoiser(**arguments)) or "a tensor inside of it"
    found = f", first in {first}; expected finite ones, as in float32."
    if precision != "fp16":
        return f"{found} Report the model."
    blocks = find_blocks_to_keep(captured.denoiser, case.arguments, lambda twin: twin(**arguments), keep_fp32)
    if not blocks:
        return f"{found} No block alone is at fault: export in bf16 or fp32."
    return f"{found} They overflow fp16: keep these blocks in fp32 (keep_fp32), or use bf16: {' '.join(blocks)}"


def _parse(onnx: Path) -> None:
    import onnx as library

    try:
        with without_links(onnx) as plain:
            library.checker.check_model(str(plain))
    except library.checker.ValidationError as error:
        raise ZeusError(
            f"onnx: got {onnx.name}, which is no valid graph ({say_cause(error)}); expected one. Report the model."
        ) from error
