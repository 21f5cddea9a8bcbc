"""What calibration keeps of full trajectories: inner products of their outputs, and how outputs respond to errors."""

import json
import os
import warnings
from collections.abc import Mapping, Sequence
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
        products: (T, N, N) float64: mean over the elements of psi_i psi_j.
        responses: (T, P, N) float64: the slope of the output's change on the input's change, a least-squares
            number per evaluation; NaN where the probe skipped or had not yet moved.
        numbers: The samples recorded, in order.
        tag: What they were recorded from, JSON data.
        calls: Denoiser evaluations spent, each sample's counted.
        noise: (T, N) float64: mean square over the elements of the quantized engine's error, which is its output minus
            psi_i at the same input; None where that engine was not recorded.
        initial: (T, N + 1) float64: mean over the elements of the initial sample's products with itself and with every
            psi_i; None in files of earlier versions.
    """

    products: np.ndarray
    responses: np.ndarray
    numbers: tuple[int, ...]
    tag: Mapping[str, Any]
    calls: int
    noise: np.ndarray | None = None
    initial: np.ndarray | None = None

    @property
    def num_evaluations(self) -> int:
        """N."""
        return self.products.shape[-1]

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
            _join(self.noise, other.noise),
            _join(self.initial, other.initial),
        )

    def select(self, numbers: Sequence[int]) -> "TrajectoryStats":
        """Those of these samples; every trajectory took as many calls."""
        places = [self.numbers.index(number) for number in numbers]
        calls = self.calls * len(places) // len(self.numbers)
        noise, initial = (None if one is None else one[places] for one in (self.noise, self.initial))
        return TrajectoryStats(
            self.products[places], self.responses[places], tuple(numbers), self.tag, calls, noise, initial
        )

    def save(self, path: str | os.PathLike) -> None:
        """Writes a .npz file, whole or not at all; no pickle is in it."""
        facts = json.dumps({"numbers": self.numbers, "tag": self.tag, "calls": self.calls})
        with write_atomically(Path(path)) as temporary, temporary.open("wb") as file:
            arrays = {"products": self.products, "responses": self.responses, "facts": np.array(facts)}
            optional = {"noise": self.noise, "initial": self.initial}
            arrays |= {name: array for name, array in optional.items() if array is not None}
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "TrajectoryStats":
        """Reads a file that ``save`` wrote.

        Raises:
            ZeusError: It is missing or damaged.
        """
        arrays = read_arrays(path, _THING, advice=_ADVICE)
        noise, initial = arrays.pop("noise", None), arrays.pop("initial", None)
        if arrays.keys() != {"products", "responses", "facts"} or arrays["facts"].size != 1:
            raise _refuse(path, "it has other arrays")
        text = str(arrays["facts"].item()).encode("utf-8", "replace")
        facts = strict_json.parse(text, _Facts, _THING, advice=_ADVICE)
        products, responses, count = arrays["products"], arrays["responses"], len(facts.numbers)
        size = products.shape[-1:]
        if products.shape != (count, *size * 2) or responses.ndim != 3 or responses.shape[::2] != (count, *size):
            raise _refuse(path, "its arrays do not fit each other")
        if noise is not None and (noise.shape != (count, *size) or (noise < 0).any()):
            raise _refuse(path, "its noise does not fit its products")
        if initial is not None and initial.shape != (count, size[0] + 1):
            raise _refuse(path, "its initial samples do not fit its products")
        known = [array for array in (products, responses, noise, initial) if array is not None]
        if any(array.dtype != np.float64 for array in known):
            raise _refuse(path, "its arrays are no float64")
        if any(not np.isfinite(array).all() for array in known if array is not responses) or np.isinf(responses).any():
            raise _refuse(path, "a value that is not finite")
        return cls(products, responses, facts.numbers, facts.tag, facts.calls, noise, initial)


def _join(one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    return None if one is None or other is None else np.concatenate([one, other])


def _refuse(path: str | os.PathLike, reason: str) -> ZeusError:
    return ZeusError(
        f"{_THING}: got {path}, which cannot be read ({reason}); expected a file that calibration wrote. {_ADVICE}"
    )
