"""Branches of a denoiser's code on the values of its inputs."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Branch:
    """A condition on values, of which a graph has one side. Where it is the other, the graph returns NaN.

    Args:
        origin: File and line of the model that branches.
        inputs: Names of the inputs that it reads.
        answer: Whether the condition held in the run that was exported.
    """

    origin: str
    inputs: tuple[str, ...]
    answer: bool


def say_branches(branches: Sequence[Branch]) -> str:
    """Where to look if a graph with branches returns NaN."""
    inputs = dict.fromkeys(name for branch in branches for name in branch.inputs)
    lines = ", ".join(dict.fromkeys(branch.origin for branch in branches))
    return (
        f"The model's code branches on the values of {' and '.join(inputs)} ({lines}), and the graph has the side that "
        "was exported: run the pipeline with such values, or export it as you run it."
    )
