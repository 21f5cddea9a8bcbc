"""Writes a denoiser of EDM as ONNX with nothing but numpy and onnx: the best one for a mixture of blurred digits.

python examples/foreign_edm.py -o mixture.onnx
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PER_CLASS, SIDE, SPREAD = 12, 16, 0.15


def read_means() -> tuple[np.ndarray, np.ndarray]:
    """Means (count, pixels) in -1..1 and their labels: digits of half the size, some of each class."""
    data = np.load(Path(__file__).parent / "data/digits.npz")
    chosen = np.concatenate([np.flatnonzero(data["y"] == label)[:PER_CLASS] for label in range(10)])
    pixels = data["x"][chosen].reshape(-1, SIDE, 2, SIDE, 2).mean((2, 4)) / 127.5 - 1
    return pixels.reshape(len(chosen), -1).astype(np.float32), data["y"][chosen].astype(np.int64)


def build(means: np.ndarray, labels: np.ndarray) -> onnx.ModelProto:
    """``D(x; sigma) = (s^2 x + sigma^2 sum_k w_k mean_k) / (s^2 + sigma^2)``, w_k the weight of mean k of the label.

    That is E[clean | x] of a mixture of Gaussians of standard deviation s around the means; label 10 takes them all.
    """
    constants = {
        "means": means, "means_t": means.T, "half": (means**2).sum(1)[None] / 2, "s2": np.float32(SPREAD**2),
        "labels": labels[None], "ten": np.int64(10), "far": np.float32(-1e9), "none": np.float32(0),
        "rows": np.array([-1, means.shape[1]]), "column": np.array([-1, 1]), "picture": np.array([-1, 1, SIDE, SIDE]),
    }  # fmt: skip
    steps = """x rows Reshape flat; sigma column Reshape s; s s Mul v; v s2 Add t2; flat means_t MatMul dot;
        dot half Sub near; near t2 Div fit; label column Reshape asked; asked labels Equal same; asked ten Equal any;
        same any Or fits; fits none far Where mask; fit mask Add logits; logits Softmax w; w means MatMul mean;
        mean v Mul a; flat s2 Mul b; a b Add ab; ab t2 Div d; d picture Reshape denoised"""
    nodes = []
    for step in steps.split(";"):
        *inputs, operator, output = step.split()
        nodes.append(helper.make_node(operator, inputs, [output]))
    sizes = ["n", 1, SIDE, SIDE]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes),
        helper.make_tensor_value_info("sigma", TensorProto.FLOAT, ["n"]),
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
    ]
    output = helper.make_tensor_value_info("denoised", TensorProto.FLOAT, sizes)
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "mixture", inputs, [output], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(path: str | Path) -> None:
    """Writes the graph of all these digits."""
    onnx.save(build(*read_means()), path)


if __name__ == "__main__":
    write(sys.argv[2])
