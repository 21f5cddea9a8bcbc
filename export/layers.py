"""The layers of a graph that have weights, and which of them compute in 8 bits."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest

OPERATORS = ("Conv", "MatMul", "Gemm")
WHOLE, WEIGHTS, FLOAT = "whole", "weights", "float"
_SHAPES = ("Shape", "Size")  # of a tensor, whatever its numbers are


@dataclass(frozen=True)
class Layer:
    """A layer whose weight is an initializer.

    Args:
        node: Name of its node.
        name: Of its parameter in the denoiser, such as ``conv_in.weight``; that of the node if it is not known.
        activation: Name of the tensor that it reads.
        weight: Name of its initializer.
        treatment: ``whole``: weight and activation in 8 bits; ``weights``: the weight alone; ``float``: neither.
    """

    node: str
    name: str
    activation: str
    weight: str
    treatment: str = WHOLE

    @property
    def module(self) -> str:
        """Name of its module."""
        return self.name.removesuffix(".weight")

    @property
    def block(self) -> str:
        """The block of the denoiser that it is in: ``down_blocks.0``, ``conv_in``."""
        parts = self.module.split(".")
        end = next((place for place, part in enumerate(parts) if part.isdigit()), 0)
        return ".".join(parts[: end + 1])

    def fits(self, pattern: str) -> bool:
        """Whether a pattern names it: its node, its parameter, its module or its block."""
        return any(fnmatchcase(name, pattern) for name in (self.node, self.name, self.module, self.block))


def list_layers(
    model: Any, manifest: Manifest, parameters: Mapping[str, str], keep: Sequence[str] = ()
) -> tuple[Layer, ...]:
    """The layers of a graph, in its order, each with its treatment.

    The first layers that the latents meet and the last ones before the output stay in float. So do the activations of
    embeddings, which are vectors per row: what is computed of the timestep, or of vectors alone, without the latents.

    Args:
        model: The graph, an ``onnx.ModelProto``; its weights are not read.
        manifest: What its inputs are.
        parameters: Name of the parameter that an initializer holds.
        keep: Patterns of layers that stay in float, as in ``Layer.fits``.

    Raises:
        ZeusError: A pattern that fits no layer, or nothing is left to compute in 8 bits.
    """
    layers = list(_find_layers(model, manifest, parameters))
    if unused := [pattern for pattern in keep if not any(layer.fits(pattern) for layer in layers)]:
        example = layers[len(layers) // 2].name if layers else "*"
        raise ZeusError(
            f"keep: got {unused[0]}, which fits no layer of the graph; expected a pattern such as {example}. Change it."
        )
    kept = [replace(layer, treatment=FLOAT) if any(map(layer.fits, keep)) else layer for layer in layers]
    if not any(layer.treatment == WHOLE for layer in kept):
        raise ZeusError(
            f"layers: got {len(kept)}, all of which stay in float; expected some whose weights and activations go into "
            "8 bits. Keep fewer."
        )
    return tuple(kept)


def _find_layers(model: Any, manifest: Manifest, parameters: Mapping[str, str]) -> Iterator[Layer]:
    weights = {initializer.name for initializer in model.graph.initializer}
    latents, timestep = (spec.name for spec in manifest.inputs[:2])
    vectors = {spec.name for spec in manifest.inputs if len(spec.axes) <= 2}
    nodes = model.graph.node
    reads = _find_inputs(nodes, [spec.name for spec in manifest.inputs])
    found = [node for node in nodes if node.op_type in OPERATORS and node.input[1] in weights]
    names = {node.name for node in found if latents in reads[node.output[0]]}
    behind = _follow(nodes, names)
    ahead = _follow([*reversed(nodes)], {node.name for node in found}, backwards=True)
    for node in found:
        read = reads[node.output[0]]
        is_end = (node.name in names and node.name not in behind) or node.name not in ahead
        is_embedding = latents not in read and (timestep in read or read <= vectors)
        treatment = FLOAT if is_end else WEIGHTS if is_embedding else WHOLE
        yield Layer(node.name, parameters.get(node.input[1], node.name), node.input[0], node.input[1], treatment)


def _find_inputs(nodes: Sequence[Any], inputs: Collection[str]) -> dict[str, frozenset[str]]:
    """The inputs of the graph whose numbers a value is computed of, by its name."""
    found = {name: frozenset((name,)) for name in inputs}
    for node in nodes:
        read = frozenset().union(*(found.get(name, frozenset()) for name in node.input))
        found.update(dict.fromkeys(node.output, frozenset() if node.op_type in _SHAPES else read))
    return found


def _follow(nodes: Sequence[Any], marked: Collection[str], backwards: bool = False) -> set[str]:
    """Names of the nodes that are reached from a marked one, or that reach one; ``nodes`` are in that order."""
    values: set[str] = set()
    reached = set()
    for node in nodes:
        sources, targets = (node.output, node.input) if backwards else (node.input, node.output)
        is_reached = node.op_type not in _SHAPES and any(name in values for name in sources)
        if is_reached:
            reached.add(node.name)
        if is_reached or node.name in marked:
            values.update(targets)
    return reached
