"""What each operator on complex numbers is in real ones.

Torch's own ``ComplexTensor`` has such rules too, but makes complex tensors again where a factor is real, and has no
``polar``; torch's and onnxscript's translations into ONNX have neither ``polar`` nor a product.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten
Write = Callable[..., Any]
"""Writes an operator with its arguments into the graph, and returns its node."""


@dataclass(frozen=True)
class Pair:
    """A complex value: the nodes, or numbers, of its parts. Without an imaginary part it is real."""

    real: Any
    imaginary: Any = None


_ON_FIRST = (
    aten.sym_size, aten.sym_numel, aten.sym_stride, aten.sym_storage_offset, operator.getitem,
    aten.slice, aten.view, aten._unsafe_view, aten.reshape, aten.expand, aten.repeat, aten.unsqueeze, aten.squeeze,
    aten.select, aten.index, aten.index_select, aten.gather, aten.permute, aten.transpose, aten.t, aten.flatten,
    aten.unflatten, aten.movedim, aten.narrow, aten.chunk, aten.split, aten.split_with_sizes, aten.unbind, aten.tile,
    aten.clone, aten.contiguous, aten.alias, aten.detach, aten.detach_, aten.lift_fresh_copy, aten.resolve_conj,
    aten.resolve_neg, aten.flip, aten.roll, aten.diagonal, aten.neg, aten.sum, aten.mean, aten.cumsum,
    aten.repeat_interleave, aten.zeros_like, aten.new_zeros, aten.cat, aten.concat, aten.stack, aten.expand_as,
    aten.view_as, aten.broadcast_to, aten._to_copy, aten.to, aten.pad, aten.embedding, aten.broadcast_tensors,
)  # fmt: skip
PLACES: dict[Any, tuple[int, ...]] = {
    **dict.fromkeys(_ON_FIRST, (0,)),
    aten.zeros: (), aten.where: (1, 2), aten.index_put: (0, 2), aten.slice_scatter: (0, 1), aten.select_scatter: (0, 1),
    aten.copy: (0, 1), aten.masked_fill: (0, 2), aten.fill: (0, 1), aten.constant_pad_nd: (0, 2), aten.full: (1,),
    aten.full_like: (0, 1), aten.new_full: (0, 2), aten.scalar_tensor: (0,), aten.add: (0, 1), aten.sub: (0, 1),
    aten.rsub: (0, 1),
}  # fmt: skip
"""Operators that act on each part alone, and which of their arguments are values; the others stay as they are."""


def _multiply(write: Write, one: Pair, other: Pair) -> Pair:
    return _combine(write, aten.mul.Tensor, one, other)


def _combine(write: Write, product: Any, one: Pair, other: Pair) -> Pair:
    """A product of any kind: of numbers, or of matrices."""
    if other.imaginary is None:
        return Pair(write(product, one.real, other.real), write(product, one.imaginary, other.real))
    if one.imaginary is None:
        return Pair(write(product, one.real, other.real), write(product, one.real, other.imaginary))
    straight = write(product, one.real, other.real), write(product, one.imaginary, other.imaginary)
    crossed = write(product, one.real, other.imaginary), write(product, one.imaginary, other.real)
    return Pair(write(aten.sub.Tensor, *straight), write(aten.add.Tensor, *crossed))


def _divide(write: Write, one: Pair, other: Pair) -> Pair:
    if other.imaginary is None:
        return Pair(*(write(aten.div.Tensor, part, other.real) for part in (one.real, one.imaginary)))
    return _multiply(write, one, _invert(write, other))


def _invert(write: Write, value: Pair) -> Pair:
    squares = [write(aten.mul.Tensor, part, part) for part in (value.real, value.imaginary)]
    whole = write(aten.add.Tensor, *squares)
    turned = _conjugate(write, value)
    return Pair(*(write(aten.div.Tensor, part, whole) for part in (turned.real, turned.imaginary)))


def _polar(write: Write, size: Pair, angle: Pair) -> Pair:
    turns = (write(turn, angle.real) for turn in (aten.cos.default, aten.sin.default))
    return Pair(*(write(aten.mul.Tensor, size.real, turn) for turn in turns))


def _exp(write: Write, value: Pair) -> Pair:
    return _polar(write, Pair(write(aten.exp.default, value.real)), Pair(value.imaginary))


def _conjugate(write: Write, value: Pair) -> Pair:
    return Pair(value.real, write(aten.neg.default, value.imaginary))


def _view_as_complex(write: Write, value: Pair) -> Pair:
    return Pair(*(write(aten.select.int, value.real, -1, place) for place in (0, 1)))


def _join(write: Write, real: Pair, imaginary: Pair) -> Pair:
    """``torch.complex``: each part in the shape of both."""
    parts = [(real.real, imaginary.real), (imaginary.real, real.real)]
    return Pair(*(write(aten.add.Tensor, part, write(aten.zeros_like.default, other)) for part, other in parts))


def _size(write: Write, value: Pair) -> Any:
    squares = [write(aten.mul.Tensor, part, part) for part in (value.real, value.imaginary)]
    return write(aten.sqrt.default, write(aten.add.Tensor, *squares))


RULES: dict[Any, Callable[..., Any]] = {
    aten.mul: _multiply, aten.div: _divide, aten.reciprocal: _invert, aten.exp: _exp, aten.polar: _polar,
    aten.complex: _join, aten.abs: _size,
    **dict.fromkeys((aten.conj, aten._conj, aten.conj_physical, aten._conj_physical), _conjugate),
    aten.view_as_complex: _view_as_complex,
    aten.view_as_real: lambda write, value: write(aten.stack.default, [value.real, value.imaginary], -1),
    aten.real: lambda write, value: value.real,
    aten.imag: lambda write, value: value.imaginary,
    aten.angle: lambda write, value: write(aten.atan2.default, value.imaginary, value.real),
    aten.mm: lambda write, *pairs: _combine(write, aten.mm.default, *pairs),
    aten.bmm: lambda write, *pairs: _combine(write, aten.bmm.default, *pairs),
    aten.matmul: lambda write, *pairs: _combine(write, aten.matmul.default, *pairs),
}  # fmt: skip
"""Operators whose parts depend on both parts of their arguments, each as a function of pairs."""
