"""What calibration keeps of full trajectories: inner products of their outputs, and how outputs respond to errors."""

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from zeus_trt import strict_json
from zeus_trt.arrays import read_arrays
from zeus_trt.errors import ZeusError
from zeus_trt.files import write_atomically

_THING = "recorded trajectories"
_ADVICE = "Delete it, and record again."


@dataclass(frozen=True)
class _Facts:
    """What a file holds besides its arrays."""

    numbers: tuple[int, ...]
    tag: dict[str, Any]
    calls: int

    def __post_init__(self) -> None:
        if not self.numbers or min(self.calls, *self.numbers) < 0 or len(set(self.numbers)) < len(self.numbers):
            raise ValueError("its numbers are negative, repeated or missing")


@dataclass(frozen=True, eq=False)
class TrajectoryStats:
    """A handful of full runs, reduced to numbers.

    psi_i is the output used at evaluation i of a full run, after guidance. T trajectories, N evaluations, P probes:
    runs with skipped steps from the same noise, which show how the output moves with the model input.

    Args:
        products: (T, N, N) float64: mean over the elements of psi_i psi_j. (T, 2 N, 2 N) where the quantized engine was
            recorded too: after the psi_i come its errors, its outputs at the same inputs minus these.
        responses: (T, P, N) float64: the slope of the output's change on the input's change, a least-squares
            number per evaluation; NaN where the probe skipped or had not yet moved.
        numbers: The samples recorded, in order.
        tag: What they were recorded from, JSON data.
        calls: Denoiser evaluations spent, each sample's counted.
    """

    products: np.ndarray
    responses: np.ndarray
    numbers: tuple[int, ...]
    tag: Mapping[str, Any]
    calls: int

    @property
    def num_evaluations(self) -> int:
        """N."""
        return self.responses.shape[-1]

    @property
    def has_quantized(self) -> bool:
        """Whether the errors of the quantized engine are among the products."""
        return self.products.shape[-1] > self.num_evaluations

    @cached_property
    def feedback(self) -> np.ndarray:
        """(N,) float64: by how much an output moves when its model input moves by one.

        The median over trajectories, the mean over probes; interpolated where no probe measured it.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # evaluations without a probe
            slopes = np.nanmean(np.nanmedian(self.responses, axis=0), axis=0)
        measured = np.flatnonzero(~np.isnan(slopes))
        if not measured.size:
            return np.zeros(self.num_evaluations)
        return np.interp(np.arange(self.num_evaluations), measured, slopes[measured])

    def extend(self, other: "TrajectoryStats") -> "TrajectoryStats":
        """This and further trajectories of the same tag."""
        return TrajectoryStats(
            np.concatenate([self.products, other.products]),
            np.concatenate([self.responses, other.responses]),
            self.numbers + other.numbers,
            self.tag,
            self.calls + other.calls,
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes a .npz file, whole or not at all; no pickle is in it."""
        facts = json.dumps({"numbers": self.numbers, "tag": self.tag, "calls": self.calls})
        with write_atomically(Path(path)) as temporary, temporary.open("wb") as file:
            np.savez(file, products=self.products, responses=self.responses, facts=np.array(facts))

    @classmethod
    def load(cls, path: str | os.PathLike) -> "TrajectoryStats":
        """Reads a file that ``save`` wrote.

        Raises:
            ZeusError: It is missing or damaged.
        """
        arrays = read_arrays(path, _THING, advice=_ADVICE)
        if arrays.keys() != {"products", "responses", "facts"} or arrays["facts"].size != 1:
            raise _refuse(path, "it has other arrays")
        text = str(arrays["facts"].item()).encode("utf-8", "replace")
        facts = strict_json.parse(text, _Facts, _THING, advice=_ADVICE)
        products, responses, count = arrays["products"], arrays["responses"], len(facts.numbers)
        size = responses.shape[-1]
        is_square = products.shape in ((count, size, size), (count, 2 * size, 2 * size))
        if not is_square or responses.ndim != 3 or len(responses) != count:
            raise _refuse(path, "its arrays do not fit each other")
        if products.dtype != np.float64 or responses.dtype != np.float64:
            raise _refuse(path, "its arrays are no float64")
        if not np.isfinite(products).all() or np.isinf(responses).any():
            raise _refuse(path, "a value that is not finite")
        return cls(products, responses, facts.numbers, facts.tag, facts.calls)


def _refuse(path: str | os.PathLike, reason: str) -> ZeusError:
    return ZeusError(
        f"{_THING}: got {path}, which cannot be read ({reason}); expected a file that calibration wrote. {_ADVICE}"
    )
