"""From an exported program to an ONNX graph that engines can run."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.chunks import slice_chunks
from zeus_trt.export.complex_numbers import make_real
from zeus_trt.export.quotients import round_down
from zeus_trt.export.tables import compute_tables
from zeus_trt.export.translations import TRANSLATIONS
from zeus_trt.runtime.bundle.precision import METADATA as PRECISION
from zeus_trt.runtime.bundle.size_rules import METADATA, SizeRules
from zeus_trt.runtime.bundle.tensor_spec import OUTPUT_NAME

OPSET = 20
_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir", "torch.fx.experimental.symbolic_shapes")


def write_graph(
    program: torch.export.ExportedProgram,
    inputs: Sequence[str],
    axes: Sequence[Sequence[int | str | None]],
    path: Path,
    outputs: Sequence[str] = (OUTPUT_NAME,),
) -> Any:
    """Writes ``path`` and its weights ``path.data``. No value in it is float64.

    Args:
        program: A function of tensors and integers that returns tensors.
        inputs: Names of its inputs.
        axes: Per input, then per output, a size or the name of a size per axis.
        path: Where the graph goes.
        outputs: Names of its outputs.

    Returns:
        The graph, an ``onnx_ir.Model``.

    Raises:
        ZeusError: An operator that has no form in ONNX, or in real numbers.
    """
    with quiet():
        program = make_real(program)
        compute_tables(program)
        slice_chunks(program)
        round_down(program)
        try:
            exported = torch.onnx.export(
                program, dynamo=True, input_names=list(inputs), output_names=list(outputs), opset_version=OPSET,
                custom_translation_table=TRANSLATIONS, optimize=False, verbose=False,
            )  # fmt: skip
            assert exported is not None
            _simplify(exported.model)
        except Exception as error:  # torch and onnxscript each raise their own
            source = error.__cause__ if isinstance(error, torch.onnx.OnnxExporterError) else error
            reason = next(iter(str(source or error).strip().splitlines()), type(error).__name__)
            raise ZeusError(
                f"onnx: got an operator that has no form in it ({reason}); expected real tensors and operators that "
                "ONNX knows. Report the model."
            ) from error
        _narrow_float64(exported.model)
        _name_axes(exported.model, axes)
        for node in exported.model.graph.all_nodes():
            node.metadata_props.clear()  # stack traces: paths of this machine, and half of the file
        exported.save(path, external_data=True)
    return exported.model


def write_metadata(path: Path, rules: SizeRules, precision: str) -> None:
    """Writes what a graph asks of its sizes, and its precision, into the graph: ``OnnxRuntimeEngine`` reads them."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    onnx.helper.set_model_props(model, {METADATA: rules.to_json(), PRECISION: precision})
    path.write_bytes(model.SerializeToString())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the exporter's own progress and warnings off the terminal."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    # Torch prints half a graph to stderr where the model branches on data.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _simplify(model: Any) -> None:
    """Folds constants, and drops nodes that are unused or repeated.

    Not torch's own ``optimize``: it also takes ``x + 1e-8`` for ``x``, and a division by zero follows.
    """
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.inline(model)
    optimizer.fold_constants_ir(model, onnx_shape_inference=True)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.DeduplicateInitializersPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    optimizer.remove_unused_nodes(model)


def _narrow_float64(model: Any) -> None:
    """Turns every float64 value, constant and cast into float32: engines have no float64."""
    import onnx_ir as ir

    double, single = ir.DataType.DOUBLE, ir.DataType.FLOAT
    values = [*model.graph.inputs, *model.graph.initializers.values()]
    for node in model.graph.all_nodes():
        values += node.outputs
        for name, attribute in list(node.attributes.items()):
            if name in ("to", "dtype") and attribute.value == double:
                node.attributes[name] = ir.AttrInt64(name, single)
            elif attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == double:
                node.attributes[name] = ir.AttrTensor(name, _narrow(attribute.value))
    for value in values:
        if value.dtype == double:
            if value.const_value is not None:
                value.const_value = _narrow(value.const_value)
            value.dtype = single


def _narrow(tensor: Any) -> Any:
    import onnx_ir as ir

    return ir.tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _name_axes(model: Any, axes: Sequence[Sequence[int | str | None]]) -> None:
    """Names the axes of inputs and output; the shapes of all other values, in torch's symbols, are dropped."""
    import onnx_ir as ir

    for node in model.graph.all_nodes():
        for output in node.outputs:
            output.shape = None
    for value, names in zip([*model.graph.inputs, *model.graph.outputs], axes, strict=True):
        value.shape = ir.Shape(names)
