"""A graph with weights and activations in 8 bits."""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.layers import FLOAT, OPERATORS, WHOLE, Layer
from zeus_trt.export.plain_files import without_links
from zeus_trt.runtime.bundle.precision import Precision

Ranges = Mapping[str, tuple[float, float]]
"""Smallest and largest number of an activation, by its name."""

_LARGEST = {Precision.INT8: 127.0, Precision.FP8: 448.0}
_QDQ = ("QuantizeLinear", "DequantizeLinear")


def import_quantizer() -> Any:
    """The quantizer of ONNX Runtime; raises ZeusError where it is missing."""
    try:
        import onnxruntime.quantization
    except ImportError as error:
        raise ZeusError(
            f"onnxruntime: got no quantizer ({error}); expected that of ONNX Runtime. "
            "Install it: pip install 'zeus-trt[onnxruntime]'."
        ) from error
    return onnxruntime.quantization


def quantize_graph(onnx: Path, layers: Sequence[Layer], ranges: Ranges, precision: Precision, output: Path) -> None:
    """Writes a graph whose layers compute in 8 bits, with its weights in ``output.data``.

    Weights are quantized per output channel, activations per tensor, all symmetrically: TensorRT has no zero points.
    Outputs of layers stay in float, since TensorRT adds the next operators to the layer, and they need the digits.

    Args:
        onnx: The graph in fp32 or fp16.
        layers: Its layers and their treatment.
        ranges: Of the activations of the layers that are quantized as a whole.
        precision: ``int8`` or ``fp8``, which is E4M3.
        output: Where the graph goes.

    Raises:
        ZeusError: ONNX Runtime is missing.
    """
    import onnx as library

    quantizer = import_quantizer()
    with without_links(onnx, output.parent) as plain:
        source = library.load(str(plain))
    floats = {tensor.name: tensor for tensor in source.graph.initializer}
    weights = {layer.weight for layer in layers if layer.treatment != FLOAT}
    kept = {name: library.numpy_helper.to_array(floats[name]) for name in weights} if precision == "fp8" else {}
    model = _insert_pairs(quantizer, source, layers, ranges)
    _free_activations(model, {layer.node for layer in layers if layer.treatment == WHOLE})
    if precision == Precision.FP8:
        _turn_to_fp8(model, kept)
    library.save_model(
        model, str(output), save_as_external_data=True, all_tensors_to_one_file=True, location=f"{output.name}.data"
    )
    Path(f"{output}.data").chmod(output.stat().st_mode)  # it is made for its owner alone


def _insert_pairs(quantizer: Any, model: Any, layers: Sequence[Layer], ranges: Ranges) -> Any:
    """The graph in INT8 by ONNX Runtime."""
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.value_info, *model.graph.input)}
    half, nothing = quantizer.quant_utils.onnx_proto.TensorProto.FLOAT16, (0.0, 0.0)
    data = {}
    for layer in layers:
        if layer.treatment != FLOAT:  # the pairs of embeddings go again: their range counts for nothing
            kind = np.float16 if types.get(layer.activation) == half else np.float32
            lowest, highest = (np.array(end, kind) for end in ranges.get(layer.activation, nothing))
            data[layer.activation] = quantizer.calibrate.TensorData(lowest=lowest, highest=highest)
    method = quantizer.CalibrationMethod.MinMax
    pass_ = quantizer.QDQQuantizer(
        model,
        per_channel=True,
        reduce_range=False,
        weight_qType=quantizer.QuantType.QInt8,
        activation_qType=quantizer.QuantType.QInt8,
        tensors_range=quantizer.calibrate.TensorsData(method, data),
        nodes_to_quantize=[layer.node for layer in layers if layer.treatment != FLOAT],
        nodes_to_exclude=[],
        op_types_to_quantize=list(OPERATORS),
        extra_options={
            "ActivationSymmetric": True,
            "WeightSymmetric": True,
            "DedicatedQDQPair": True,
            "QuantizeBias": False,
            "OpTypesToExcludeOutputQuantization": list(OPERATORS),
        },
    )
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # it writes to the root logger
    try:
        pass_.quantize_model()
    finally:
        logging.root.setLevel(level)
    return pass_.model.model


def _free_activations(model: Any, names: Collection[str]) -> None:
    """Leaves the pairs before activations to these nodes alone, and drops those that nothing reads then.

    ONNX Runtime gives the rounded tensor to all nodes that read it, such as the norm beside a shortcut.
    """
    made_by = {name: node for node in model.graph.node for name in node.output}
    pairs = {}
    for node in model.graph.node:
        if node.op_type == _QDQ[1] and (quantize := made_by.get(node.input[0])):
            pairs[node.output[0]] = (quantize.input[0], node, quantize)
    used = set()
    for node in model.graph.node:
        if node.op_type not in _QDQ:
            read = [pairs[name][0] if name in pairs and node.name not in names else name for name in node.input]
            node.input[:] = read
            used.update(read)
    unused = {id(one) for name, (_, *pair) in pairs.items() if name not in used for one in pair}
    left = [node for node in model.graph.node if id(node) not in unused]
    del model.graph.node[:]
    model.graph.node.extend(left)
    used = {name for node in left for name in node.input}
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in used]:
        model.graph.initializer.remove(tensor)


def _turn_to_fp8(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Turns the INT8 of every pair into E4M3.

    ONNX Runtime's quantizer has E4M3 as well. But it has one scale for a whole weight, and takes it from the standard
    deviation instead of the largest number, which clips what is far from the mean.
    """
    from onnx import TensorProto, helper, numpy_helper

    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    factor = _LARGEST[Precision.INT8] / _LARGEST[Precision.FP8]
    pairs = [node for node in model.graph.node if node.op_type in _QDQ]
    for name in {node.input[1] for node in pairs}:
        scale = numpy_helper.to_array(tensors[name])
        tensors[name].CopyFrom(numpy_helper.from_array((scale * factor).astype(scale.dtype), name))
    for node in pairs:
        if (stored := tensors.get(node.input[0])) is not None and stored.data_type == TensorProto.INT8:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), None)
            scale = numpy_helper.to_array(tensors[node.input[1]]).astype(np.float32)
            weight = weights[stored.name.removesuffix("_quantized")].astype(np.float32)
            if axis is not None and scale.ndim:
                scale = np.expand_dims(scale, [place for place in range(weight.ndim) if place != axis % weight.ndim])
            rounded = torch.from_numpy((weight / scale).clip(-448, 448)).to(torch.float8_e4m3fn)
            content = rounded.view(torch.uint8).numpy().tobytes()
            stored.CopyFrom(helper.make_tensor(stored.name, TensorProto.FLOAT8E4M3FN, weight.shape, content, raw=True))
    for name in {node.input[2] for node in pairs}:
        zero, shape = TensorProto.FLOAT8E4M3FN, list(tensors[name].dims)
        tensors[name].CopyFrom(helper.make_tensor(name, zero, shape, bytes(int(np.prod(shape))), raw=True))
