"""A denoiser that others exported or compiled: what it says of its inputs, and how it runs."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec

if TYPE_CHECKING:
    from zeus_trt.export.foreign_findings import Findings
    from zeus_trt.export.foreign_wiring import Wiring
    from zeus_trt.export.parameterization import Parameterization

BATCH = "batch"


@dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """What all kinds have in common.

    Args:
        path: Where it was read.
        inputs: Its inputs in order. A dynamic axis has the model's name for it, or one made of the input's.
        outputs: Names of its outputs.
        sizes: Those of its dynamic axes that it was made at, where it says so, or may be tried at.
        rules: What it asks of its sizes, where it says so.
        original: What it was converted from: a function from its inputs to its outputs, each by name.
    """

    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    rules: SizeRules | None = None
    original: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]] | None = None

    @property
    def backend(self) -> str:
        """What runs it."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """SHA-256 that identifies it."""
        raise NotImplementedError

    @property
    def precision(self) -> Precision:
        """That of most of its floating-point weights, as far as it says."""
        raise NotImplementedError

    def prepare(self, folder: Path) -> "ForeignModel":
        """The same, ready to be computed for the bundle in ``folder``."""
        return self

    def compute(
        self, wiring: "Wiring", parameterization: "Parameterization", inputs: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """The output for inputs of the bundle, with what is computed around the model.

        Raises:
            ZeusError: It fails.
        """
        raise NotImplementedError

    def complete(self, manifest: Manifest, found: "Findings", folder: Path) -> Manifest:
        """Writes it into the bundle; returns the manifest with it, and with how it was verified."""
        raise NotImplementedError

    def find(self, option: str, name: str) -> TensorSpec:
        """The input of that name.

        Args:
            option: The option that names it, for the message.
            name: The input.

        Raises:
            ZeusError: The graph has no such input; the message lists those that it has.
        """
        found = next((spec for spec in self.inputs if spec.name == name), None)
        if found is None:
            raise ZeusError(
                f"{option}: got {name!r}; expected an input of {self.path.name}: {list_specs(self.inputs)}. Name one "
                "of these."
            )
        return found


def list_specs(specs: Sequence[TensorSpec]) -> str:
    """Names, types and axes of inputs, for messages."""
    return "; ".join(map(str, specs))


def name_axis(name: str, place: int) -> str:
    """A name for an axis that has none: made of its input's."""
    return f"{to_word(name)}_{place}"


def to_word(text: str) -> str:
    """Text as the name of an axis."""
    return re.sub(r"\W+", "_", text).strip("_")
