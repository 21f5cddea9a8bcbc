"""AOTInductor packages."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_record import EngineSpec
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec


def trace_program(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], specs: Sequence[TensorSpec]
) -> torch.export.ExportedProgram:
    """A module of positional tensors as an exported program, its named axes dynamic where the model lets them be.

    Args:
        module: In eval mode; returns one tensor.
        inputs: Example inputs in the order of ``specs``; sizes of named axes of 2 or more.
        specs: Their axes.
    """
    auto = torch.export.Dim.AUTO  # dynamic where the model lets it be, fixed where it does not
    axes = tuple({axis: auto for axis, size in enumerate(spec.axes) if isinstance(size, str)} for spec in specs)
    arguments = tuple(inputs[spec.name] for spec in specs)
    with torch.no_grad():
        return torch.export.export(_Positional(module), arguments, dynamic_shapes=(axes,), strict=False)


class _Positional(torch.nn.Module):
    """One signature for all, so that the axes can be given in one form."""

    def __init__(self, module: torch.nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.module(*tensors)


def check_program(program: torch.export.ExportedProgram, spec: EngineSpec, inputs: Sequence[TensorSpec]) -> None:
    """Refuses a program that is not what ``spec`` describes.

    Args:
        program: To be compiled.
        spec: The engine that it shall become.
        inputs: Inputs of the manifest, in the program's order.

    Raises:
        ZeusError: Another device or precision, or a size that is fixed in the program and a range in the profile.
    """
    tensors = [value for value in program.state_dict.values() if isinstance(value, torch.Tensor)]
    device = tensors[0].device.type if tensors else "cpu"
    if (device == "cpu") != spec.target.sms[0].startswith("cpu"):
        raise ZeusError(
            f"aot-inductor: got a model on {device} for {spec.target}; expected it on what it is built for. Move it."
        )
    precision = _find_precision(tensors)
    if precision not in (None, spec.precision):
        raise ZeusError(
            f"aot-inductor: got a model in {precision} for a graph in {spec.precision}; expected the same. Convert it."
        )
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    for tensor, name in zip(inputs, program.graph_signature.user_inputs, strict=True):
        wanted = spec.profile[tensor.name]
        for axis, size in enumerate(values[name].shape):
            fixed = size if isinstance(size, int) else size.node.maybe_as_int()
            if fixed is not None and not wanted.min[axis] == wanted.max[axis] == fixed:
                raise ZeusError(
                    f"{tensor.name}: got a model that fixes {tensor.axes[axis]} at {fixed}; expected one that takes "
                    f"{wanted.min[axis]}..{wanted.max[axis]}. Build for {fixed} only, or use another backend."
                )


def build_package(program: torch.export.ExportedProgram, output: Path) -> None:
    """Compiles ``program`` for the device that it was traced on.

    Args:
        program: A function of positional tensors that returns one tensor.
        output: The package, a ``.pt2`` file.

    Raises:
        ZeusError: Inductor or the C++ compiler fails.
    """
    try:
        torch._inductor.aoti_compile_and_package(program, package_path=str(output))
    except Exception as error:  # Inductor, Triton and the compiler each raise their own
        raise ZeusError(
            f"aot-inductor: got a program that does not compile ({_first_line(error)}); expected a package. "
            "Check that a C++ compiler is installed, and on CUDA Triton."
        ) from error


def _find_precision(tensors: Sequence[torch.Tensor]) -> Precision | None:
    """That of most of the weights; None without any."""
    counts: Counter[Precision] = Counter()
    for value in tensors:
        if found := Precision.of(value.dtype):
            counts[found] += value.numel()
    return counts.most_common(1)[0][0] if counts else None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
