"""How operators become ONNX, where torch's own way fails in an engine."""

from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset20 as op


def squeeze(tensor: Any, dim: int) -> Any:
    """``aten.squeeze.dim`` leaves an axis alone that is not 1; ONNX's Squeeze fails on it."""
    if tensor.shape and tensor.shape[dim] == 1:
        return op.Squeeze(tensor, op.Constant(value_ints=[dim]))
    return op.Identity(tensor)


def masked_fill(tensor: Any, mask: Any, value: Any) -> Any:
    """``aten.masked_fill``; ONNX Runtime has no Where of booleans."""
    if tensor.dtype == ir.DataType.BOOL:
        return op.Or(op.And(mask, op.Cast(value, to=ir.DataType.BOOL)), op.And(op.Not(mask), tensor))
    return op.Where(mask, op.CastLike(value, tensor), tensor)


def concatenate(tensors: Sequence[Any], dim: int = 0) -> Any:
    """``aten.cat`` promotes its tensors to one type; ONNX's Concat wants them of one type."""
    tensors = [tensor for tensor in tensors if tensor.shape != (0,)]
    widest = max((tensor.dtype for tensor in tensors), key=lambda dtype: (dtype.is_floating_point(), dtype.bitwidth))
    tensors = [tensor if tensor.dtype == widest else op.Cast(tensor, to=widest) for tensor in tensors]
    return op.Concat(*tensors, axis=dim)


TRANSLATIONS: dict[Callable, Callable] = {
    torch.ops.aten.squeeze.dim: squeeze,
    torch.ops.aten.masked_fill.Scalar: masked_fill,
    torch.ops.aten.masked_fill.Tensor: masked_fill,
    torch.ops.aten.cat.default: concatenate,
    torch.ops.aten.concat.default: concatenate,
}
