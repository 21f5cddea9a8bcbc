"""The facts of a quantized graph: what it was calibrated on, and how far it is from the float graph."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from zeus_trt.evaluation.table import Table

FORMAT = 1
FILE_NAME = "quantization.json"


@dataclass(frozen=True)
class StepReport:
    """One step of the plan.

    Args:
        step: Its place in the plan.
        timestep: The scheduler's timestep.
        calls: Recorded calls of the engine that the ranges were taken from.
        branches: The branches of guidance in these calls.
        error: ``|quantized - float| / |float|`` of the outputs on the inputs of held-out samples, Euclidean norms.
    """

    step: int
    timestep: float
    calls: int
    branches: tuple[str, ...]
    error: float


@dataclass(frozen=True)
class QuantizationReport:
    """A quantized graph.

    Args:
        precision: Of its layers.
        source: That of the graph that it was made from.
        num_steps: Solver steps of the runs.
        solver: Of the runs.
        plan: Of the runs.
        samples: All that determines the samples: seed, guidance, labels or prompts.
        recorded: Numbers of the samples that the ranges were taken from.
        held_out: Numbers of the samples that the errors were measured on.
        keep: Patterns of the layers that were kept in float.
        steps: Every step that calls the graph.
        ranges: Smallest and largest number of every activation in 8 bits, by its tensor's name.
        layers: Treatment of every layer, by its parameter's name.
        psnr_db: Of finished held-out samples to those of the float graph, mean over those that are not equal; None if
            all are equal.
        size: Bytes of graph and weights.
        source_size: Those of the float graph.
    """

    precision: str
    source: str
    num_steps: int
    solver: str
    plan: str
    samples: Mapping[str, Any]
    recorded: tuple[int, ...]
    held_out: tuple[int, ...]
    keep: tuple[str, ...]
    steps: tuple[StepReport, ...]
    ranges: Mapping[str, tuple[float, float]]
    layers: Mapping[str, str]
    psnr_db: float | None
    size: int
    source_size: int

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {"format": FORMAT, **asdict(self)}

    def dump(self) -> str:
        """The text of its file."""
        return json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"

    def describe(self) -> str:
        """The result on one line."""
        kinds = list(self.layers.values())
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        psnr = "equal samples" if self.psnr_db is None else f"{self.psnr_db:.1f} dB on {len(self.held_out)} samples"
        worst = max(self.steps, key=lambda step: step.error)
        return (
            f"{self.precision}: {psnr} to {self.source}, largest error of a step {worst.error:.1e} (step {worst.step}),"
            f" {self.source_size / self.size:.1f}x smaller ({self.size / 2**20:.1f} MiB); layers: {counts}"
        )

    def describe_coverage(self) -> str:
        """Tables of the steps and of the ranges."""
        steps = [
            (str(one.step), f"{one.timestep:g}", str(one.calls), "+".join(one.branches), f"{one.error:.1e}")
            for one in self.steps
        ]
        ranges = [(name, f"{low:.4g}", f"{high:.4g}") for name, (low, high) in self.ranges.items()]
        return f"{_show(('step', 'timestep', 'calls', 'branches', 'error'), steps)}\n\n" + _show(
            ("activation", "smallest", "largest"), ranges
        )


@dataclass(frozen=True)
class BlockError:
    """The error of a graph of which one block alone is quantized.

    Args:
        block: Its name, which ``keep`` takes.
        layers: How many layers of it are quantized.
        error: ``|quantized - float| / |float|`` over all recorded calls.
    """

    block: str
    layers: int
    error: float


def describe_blocks(blocks: Sequence[BlockError]) -> str:
    """A table, the largest error first."""
    rows = [(one.block, str(one.layers), f"{one.error:.2e}") for one in blocks]
    return _show(("block", "layers", "error"), rows)


def _show(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    table = Table.of_texts(heads, rows)
    return table.to_terminal(max(table.width, 80))
