"""Branches of a model's code on the values of its inputs: a graph has one side of each."""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.fx import Node
from torch.overrides import TorchFunctionMode

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.branch import Branch

_OWN = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_CHOICES = (torch.Tensor.__bool__, torch.is_nonzero)


class Branches(TorchFunctionMode):
    """Answers where the model's code makes a truth value of a tensor.

    While the model runs, it notes the answers. While it is traced, whose tensors have no values, it gives those that
    were noted, in the same order.

    Args:
        answers: What was noted: the line of the model, and the answer.
    """

    def __init__(self, answers: Sequence[tuple[str, bool]] | None = None):
        super().__init__()
        self.answers, self._is_tracing = list(answers or ()), answers is not None
        self.conditions: list[torch.Tensor] = []
        self.is_missing = False

    def begin(self) -> None:
        """The model is called: exporters call it several times."""
        self.conditions.clear()

    def poison(self, output: torch.Tensor) -> torch.Tensor:
        """The output, NaN where an input asks for the other side of a branch."""
        for condition, (_, answer) in zip(self.conditions, self.answers, strict=False):
            output = torch.where(condition.reshape(()).bool() == answer, output, torch.nan)
        return output

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        if func not in _CHOICES:
            return func(*args, **(kwargs or {}))
        if not self._is_tracing:
            self.answers.append((_find_line(), func(*args)))
            return self.answers[-1][1]
        place = len(self.conditions)
        if place >= len(self.answers):
            self.is_missing = True
            return func(*args)
        self.conditions.append(args[0])
        return self.answers[place][1]


@torch.no_grad()
def note_answers(model: torch.nn.Module, values: Sequence[Any]) -> list[tuple[str, bool]]:
    """The line of each branch of a model's code on values, in the order of a run, and its answer."""
    with Branches() as branches:
        model(*values)
    return branches.answers


def describe_branches(
    program: torch.export.ExportedProgram, names: Sequence[str], answers: Sequence[tuple[str, bool]]
) -> tuple[Branch, ...]:
    """The branches of a traced program that has passed ``poison``.

    Args:
        program: The program.
        names: Of its inputs, the latents and the timestep first.
        answers: Those of its branches.

    Raises:
        ZeusError: A branch on latents or timestep: no graph of one side serves a run.
    """
    places = dict(zip(program.graph_signature.user_inputs, names, strict=True))
    node: Any = next(node for node in program.graph.nodes if node.op == "output").args[0][0]
    found: list[Branch] = []
    for line, answer in reversed(answers):
        condition, node = node.args[:2]
        ancestors = _list_ancestors(condition)
        inputs = tuple(name for own, name in places.items() if own in ancestors)
        if moving := [name for name in inputs if name in names[:2]]:
            raise ZeusError(
                f"denoiser: got code that branches on the values of {moving[0]} at {line}; expected a branch on "
                "nothing that changes with the step. Compute both sides there, and choose with torch.where."
            )
        if inputs:
            found.append(Branch(line, inputs, answer))
    return tuple(reversed(found))


def find_origin(error: BaseException) -> str:
    """File and line of the model that an exception comes from; empty if it comes from elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames if not frame.filename.startswith(_OWN)]
    return lines[-1] if len(lines) > 1 else ""


def _find_line() -> str:
    frame: Any = sys._getframe(2)
    while frame.f_back and frame.f_code.co_filename.startswith(_OWN):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _list_ancestors(node: Node) -> set[str]:
    """Names of the nodes that a node is made of."""
    found: set[str] = set()
    below = [node]
    while below:
        if (node := below.pop()).name not in found:
            found.add(node.name)
            below += node.all_input_nodes
    return found
