"""Which initializer of a graph holds which parameter of the denoiser: what a change of weights needs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

_SAMPLES = 64  # numbers by which candidates are found before all of them are compared


def map_parameters(program: torch.export.ExportedProgram, model: Any, prefix: str) -> dict[str, dict[str, Any]]:
    """The initializer of each parameter, by the parameter's name.

    Exporters fold, transpose and reshape weights, and give those names of their own: an initializer is found by its
    numbers. A parameter that was folded into others has none.

    Args:
        program: What was exported.
        model: The graph, an ``onnx_ir.Model``.
        prefix: Of the parameters in ``program``, which is left out.
    """
    initializers = {name: value.const_value for name, value in model.graph.initializers.items()}
    by_sample: dict[tuple[int, bytes], list[str]] = {}
    for name, value in initializers.items():
        if value.size > 1:
            by_sample.setdefault(_sample(_to_bytes(value)), []).append(name)

    def find(name: str, tensor: torch.Tensor) -> dict[str, Any] | None:
        if name in initializers:
            return {"initializer": name, "transposed": False}
        for numbers, transposed in _list_forms(tensor):
            for other in by_sample.get(_sample(numbers), ()):
                if np.array_equal(numbers, _to_bytes(initializers[other])):
                    return {"initializer": other, "transposed": transposed}
        return None

    found = ((name.removeprefix(prefix), find(name, tensor)) for name, tensor in program.state_dict.items())
    return {name: place for name, place in found if place}


def write_parameters(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Writes what ``map_parameters`` found."""
    path.write_text(json.dumps({"format": 1, "parameters": found}, indent=1) + "\n", encoding="utf-8")


def _list_forms(tensor: torch.Tensor) -> Iterator[tuple[np.ndarray, bool]]:
    """The bytes of a parameter as it is, which any reshape has too, and transposed."""
    data = tensor.detach().cpu()
    for form, transposed in ((data, False), (data.T, True)) if data.ndim == 2 else ((data, False),):
        yield form.contiguous().view(-1).view(torch.uint8).numpy(), transposed


def _to_bytes(value: Any) -> np.ndarray:
    return np.frombuffer(value.tobytes(), np.uint8)


def _sample(numbers: np.ndarray) -> tuple[int, bytes]:
    return len(numbers), numbers[:: max(len(numbers) // _SAMPLES, 1)].tobytes()
