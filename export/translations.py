"""How operators become ONNX, where torch's own way fails in an engine."""

import builtins
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import opset20 as op
from onnxscript.function_libs.torch_lib.ops.core import aten_index

INT64 = ir.DataType.INT64
_NARROW = (ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT8, ir.DataType.UINT8)


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
    """``aten.cat`` promotes its tensors to one type; ONNX's Concat takes one type only."""
    tensors = [tensor for tensor in tensors if tensor.shape != (0,)]
    widest = max((tensor.dtype for tensor in tensors), key=lambda dtype: (dtype.is_floating_point(), dtype.bitwidth))
    tensors = [tensor if tensor.dtype == widest else op.Cast(tensor, to=widest) for tensor in tensors]
    return op.Concat(*tensors, axis=dim)


def index(tensor: Any, indices: Sequence[Any]) -> Any:
    """``aten.index.Tensor`` takes places of any integer type; ONNX's GatherND takes int64."""
    return aten_index(tensor, [_widen(one) if one is not None and one.dtype in _NARROW else one for one in indices])


def _widen(places: Any) -> Any:
    wide = op.Cast(places, to=INT64)
    wide.shape = places.shape
    return wide


def repeat_interleave(tensor: Any, repeats: Any, dim: int | None = None, output_size: Any = None) -> Any:
    """``aten.repeat_interleave.self_int``: each slice ``repeats`` times; torch's own way fixes a size that varies."""
    if dim is None:
        tensor, dim, rank = op.Reshape(tensor, _write([-1])), 0, 1
    else:
        rank = len(tensor.shape)
        dim %= rank
    times = _write([repeats]) if isinstance(repeats, int) else op.Reshape(op.Cast(repeats, to=INT64), _write([1]))
    after = [_write([1] * (rank - dim - 1))] if dim + 1 < rank else []
    wider = op.Concat(_write([1] * (dim + 1)), times, *after, axis=0)
    repeated = op.Expand(op.Unsqueeze(tensor, _write([dim + 1])), wider)
    if rank == 1:
        return op.Reshape(repeated, _write([-1]))
    # 0 takes the size of the repeated tensor at the same place; behind the merged axis the places differ.
    before = [_write([0] * dim)] if dim else []
    behind = [op.Shape(tensor, start=dim + 1)] if after else []
    return op.Reshape(repeated, op.Concat(*before, _write([-1]), *behind, axis=0))


def spread(repeats: Any, output_size: Any = None) -> Any:
    """``aten.repeat_interleave.Tensor``: the place of the slice that each place of the output is filled from."""
    repeats = op.Cast(repeats, to=INT64)
    ends = op.CumSum(repeats, op.Constant(value_int=0))
    total = op.ReduceSum(repeats, keepdims=0)
    places = op.Range(op.Constant(value_int=0), total, op.Constant(value_int=1))
    passed = op.LessOrEqual(op.Unsqueeze(ends, _write([0])), op.Unsqueeze(places, _write([1])))
    return op.ReduceSum(op.Cast(passed, to=INT64), _write([1]), keepdims=0)


def find_true(tensor: Any) -> Any:
    """``aten.nonzero``; TensorRT-RTX has no NonZero, so that of one axis is made of other operators."""
    if tensor.shape is None or len(tensor.shape) != 1:
        return op.Transpose(op.NonZero(tensor), perm=[1, 0])
    return op.Unsqueeze(spread(op.Cast(op.Cast(tensor, to=ir.DataType.BOOL), to=INT64)), _write([1]))


def round_number(number: Any, digits: int | None = None) -> Any:
    """``round`` of a number made of sizes, half to even as in Python."""
    if digits:
        raise NotImplementedError(f"round to {digits} digits")
    return op.Cast(op.Round(number), to=INT64)


def _write(numbers: Sequence[int]) -> Any:
    return op.Constant(value_ints=list(numbers))


TRANSLATIONS: dict[Callable, Callable] = {
    builtins.round: round_number,
    torch.ops.aten.squeeze.dim: squeeze,
    torch.ops.aten.index.Tensor: index,
    torch.ops.aten.nonzero.default: find_true,
    torch.ops.aten.masked_fill.Scalar: masked_fill,
    torch.ops.aten.masked_fill.Tensor: masked_fill,
    torch.ops.aten.repeat_interleave.self_int: repeat_interleave,
    torch.ops.aten.repeat_interleave.Tensor: spread,
    torch.ops.aten.cat.default: concatenate,
    torch.ops.aten.concat.default: concatenate,
}
