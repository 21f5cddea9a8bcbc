"""Nodes of ONNX, written one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PREFIX = "zeus_trt/"


@dataclass
class Nodes:
    """Nodes and the constants that they read. No name of theirs is one of the graph that they are written for.

    Args:
        opset: Version of ONNX's operators.
        scope: Part of the names, for a second set of nodes beside this one.
    """

    opset: int
    scope: str = ""
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, operator: str, *inputs: "str | np.ndarray | np.generic", **attributes: Any) -> str:
        """Writes a node of one output, and returns the output's name; arrays and numbers become constants."""
        import onnx

        name = f"{PREFIX}{self.scope}{operator}_{len(self.nodes)}"
        names = [one if isinstance(one, str) else self._keep(one) for one in inputs]
        self.nodes.append(onnx.helper.make_node(operator, names, [name], name=name, **attributes))
        return name

    def cast(self, value: str, dtype: str) -> str:
        """Writes a cast to a type by its name in torch."""
        return self.add("Cast", value, to=find_type(dtype))

    def unsqueeze(self, value: str, axes: Sequence[int]) -> str:
        """Writes axes of size 1."""
        return self._reshape("Unsqueeze", value, axes)

    def squeeze(self, value: str, axes: Sequence[int]) -> str:
        """Drops axes of size 1."""
        return self._reshape("Squeeze", value, axes)

    def _reshape(self, operator: str, value: str, axes: Sequence[int]) -> str:
        if self.opset < 13:  # then the axes became an input
            return self.add(operator, value, axes=list(axes))
        return self.add(operator, value, np.array(axes, np.int64))

    def _keep(self, value: "np.ndarray | np.generic") -> str:
        import onnx

        name = f"{PREFIX}{self.scope}constant_{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name


def find_type(dtype: str) -> int:
    """ONNX's number of a type by its name in torch."""
    import onnx

    return onnx.TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper()))
