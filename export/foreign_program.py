"""A program of ``torch.export`` that others saved, as a foreign graph: it is traced anew, as our own exports are."""

import importlib
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument
from torch.export.passes import move_to_device_pass
from torch.utils import _pytree as pytree

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.foreign_graph import ForeignGraph, read_foreign
from zeus_trt.export.foreign_model import name_axis
from zeus_trt.export.graph import quiet, write_graph
from zeus_trt.export.limits import read_rules
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import DTYPES, OUTPUT_NAME, SymbolSpec, TensorSpec, name_dtype

_MODELS = re.compile(r"(?:[^/]+/)?models/([^/]+)\.json")

_CLASSES = re.compile(r'\\"type\\": \\"([\w.]+)\.\w+\\"')  # in the structures of arguments and outputs


@dataclass(frozen=True)
class Layout:
    """The tensors that a program takes, and the sizes that vary."""

    inputs: tuple[TensorSpec, ...]
    symbols: tuple[SymbolSpec, ...]


class FlatProgram(torch.nn.Module):
    """A program as a function of its tensors, in the order of ``layout.inputs``, that returns all that it makes.

    Args:
        program: The program.
        first: The input that comes first, if there is one of this name.

    Raises:
        ZeusError: An input that is neither a tensor of numbers nor a constant.
    """

    def __init__(self, program: ExportedProgram, first: str):
        super().__init__()
        self.module = program.module()
        self._spec: Any = program.call_spec.in_spec
        given = [spec.arg for spec in program.graph_signature.input_specs if spec.kind == InputKind.USER_INPUT]
        self._constants = [argument.value if isinstance(argument, ConstantArgument) else None for argument in given]
        made = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        tensors = [argument.name for argument in given if not isinstance(argument, ConstantArgument)]
        for argument in given:
            if not isinstance(argument, ConstantArgument | TensorArgument):
                raise _refuse(argument.name, type(argument).__name__.removesuffix("Argument"))
        self._names = sorted(tensors, key=lambda name: name != first)
        self._places = [[argument.name for argument in given].index(name) for name in self._names]
        self._steps = [*_list_steps([made[name] for name in self._names])]
        self.layout = _describe({name: made[name] for name in self._names})
        self.examples = tuple(_make_example(made[name]) for name in self._names)

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All tensors that the program returns, in their order."""
        flat: list[Any] = list(self._constants)
        for place, value in zip(self._places, values, strict=True):
            flat[place] = value
        for place, axis, step, offset in self._steps:
            torch._check((values[place].shape[axis] - offset) % step == 0)
        args, kwargs = pytree.tree_unflatten(flat, self._spec)
        answer = pytree.tree_leaves(self.module(*args, **kwargs))
        return tuple(value for value in answer if isinstance(value, torch.Tensor))

    @torch.no_grad()
    def call(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What it returns in eager mode, by the names that the graph has for it."""
        answer = self(*(inputs[name] for name in self._names))
        return dict(zip(_name_outputs(len(answer)), answer, strict=True))


def is_compiled(path: Path) -> bool:
    """Whether a .pt2 file is a package of AOTInductor, and no program."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
    return any("data/aotinductor/" in name for name in names) and not any(map(_MODELS.fullmatch, names))


def read_program(path: str | Path, latents: str) -> ForeignGraph:
    """Reads a program that ``torch.export.save`` wrote. This runs what the file says: torch unpickles parts of it.

    It is traced again as the programs of our own exports are, which finds what it asks of its sizes, and converted.

    Args:
        path: The .pt2 file.
        latents: The name of its noisy latents.

    Raises:
        ZeusError: No such program, one that torch cannot load here, inputs that nothing here can pass, or an operator
            that has no form in ONNX.
    """
    path = Path(path)
    flat = FlatProgram(_load(path), latents)
    try:
        with torch.no_grad(), quiet():
            program = torch.export.export(flat, flat.examples, dynamic_shapes=(_open(flat.layout),), strict=False)
        rules = read_rules(flat.layout, program)
        with tempfile.TemporaryDirectory(prefix="zeus-trt-") as folder:
            graph = _convert(program, flat.layout, Path(folder, "model.onnx"))
    except ZeusError:
        raise
    except Exception as error:  # torch and the program's own code each raise theirs
        raise ZeusError(
            f"model: got {path.name}, which torch cannot trace again ({say_cause(error)}); expected a program of "
            "tensors. Export it with fewer dynamic axes."
        ) from error
    sizes = {
        axis: size
        for spec, example in zip(flat.layout.inputs, flat.examples, strict=True)
        for axis, size in zip(spec.axes, example.shape, strict=True)
        if isinstance(axis, str)
    }
    return replace(graph, path=path, rules=_forget_origins(rules), sizes=sizes, original=flat.call)


def _load(path: Path) -> ExportedProgram:
    try:
        with zipfile.ZipFile(path) as archive:
            models = {found[1]: name for name in archive.namelist() if (found := _MODELS.fullmatch(name))}
            if len(models) != 1:
                raise ValueError(f"it has {len(models)} programs")
            [(model, name)] = models.items()
            text = archive.read(name).decode()
        for module in {found[1] for found in _CLASSES.finditer(text)}:
            with suppress(ImportError):  # torch knows the classes of what it takes and returns once they are imported
                importlib.import_module(module)
        with quiet():
            from torch.export.pt2_archive._package import load_pt2  # torch.export.load keeps the cause to its log

            program = load_pt2(path).exported_programs[model]
            return move_to_device_pass(program, "cpu")
    except Exception as error:  # zipfile, json, pickle and torch each raise their own
        raise ZeusError(
            f"model: got {path}, which does not read ({say_cause(error)}); expected a program of torch.export for the "
            "devices of this machine. Give its .pt2 file, or export it again with this torch."
        ) from error


def _convert(program: ExportedProgram, layout: Layout, file: Path) -> ForeignGraph:
    outputs = [value.meta["val"] for value in program.graph.output_node().args[0]]
    axes: list[Sequence[int | str | None]] = [spec.axes for spec in layout.inputs]
    axes += [[None] * output.ndim for output in outputs]
    write_graph(program, [spec.name for spec in layout.inputs], axes, file, _name_outputs(len(outputs)))
    return read_foreign(file)


def _name_outputs(count: int) -> list[str]:
    return [OUTPUT_NAME, *(f"output_{place}" for place in range(1, count))]


def _describe(values: Mapping[str, Any]) -> Layout:
    axes: dict[Any, str] = {}
    inputs = []
    for name, value in values.items():
        if not isinstance(value, torch.Tensor) or name_dtype(value) not in DTYPES:
            raise _refuse(name, str(getattr(value, "dtype", type(value).__name__)))
        named = [
            size if isinstance(size, int) else axes.setdefault(size.node.expr, name_axis(name, place))
            for place, size in enumerate(value.shape)
        ]
        inputs.append(TensorSpec(name, name_dtype(value), tuple(named)))
    return Layout(tuple(inputs), tuple(SymbolSpec(name, ()) for name in axes.values()))


def _list_steps(values: Sequence[torch.Tensor]) -> Iterator[tuple[int, int, int, int]]:
    """Input, axis, step and offset of each size that is said to be a multiple, such as ``2 * size + 1``."""
    for place, value in enumerate(values):
        for axis, size in enumerate(value.shape):
            if not isinstance(size, int):
                offset, rest = size.node.expr.as_coeff_Add()
                step, unit = rest.as_coeff_Mul()
                if unit.is_Symbol and step > 1:
                    yield place, axis, int(step), int(offset)


def _make_example(value: torch.Tensor) -> torch.Tensor:
    """Zeros of the sizes that the program was exported at; torch takes a size of 1 for one that never moves."""
    sizes = [size if isinstance(size, int) else max(2, size.node.hint) for size in value.shape]
    return torch.zeros(sizes, dtype=value.dtype)


def _open(layout: Layout) -> tuple[dict[int, Any], ...]:
    dynamic = torch.export.Dim.DYNAMIC
    return tuple(
        {place: dynamic for place, axis in enumerate(spec.axes) if isinstance(axis, str)} for spec in layout.inputs
    )


def _forget_origins(rules: SizeRules) -> SizeRules:
    """The rules without lines of code: they come from checks of torch's own in the program."""
    return replace(rules, relations=tuple(replace(relation, origin="") for relation in rules.relations))


def _refuse(name: str, kind: str) -> ZeusError:
    return ZeusError(
        f"model: got the input {name} of {kind}; expected tensors of numbers, and constants. Export the program again."
    )
