"""The measured variants of a comparison on the disk, so that an interrupted one goes on."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.timing import Run
from zeus_trt.files import write_atomically


@dataclass(frozen=True)
class _File:
    """The fields of the JSON file of a variant."""

    meaning: dict[str, Any]
    runs: tuple[Run, ...]
    trajectory_errors: tuple[float, ...] | None
    nfe_equivalent: float | None


@dataclass(frozen=True)
class Record:
    """Everything that was measured of one variant so far.

    Args:
        runs: The timed runs, in the order of the rounds.
        latents: Of the first run, (batch, ...).
        images: Of the first run, (batch, [frames,] channels, height, width).
        trajectory_errors: Relative distance of the latents to those of the full run, after every step; None before it
            is measured.
        nfe_equivalent: For peers, the work of a run in calls of the whole denoiser; None before it is measured.
    """

    runs: tuple[Run, ...]
    latents: torch.Tensor
    images: torch.Tensor
    trajectory_errors: tuple[float, ...] | None = None
    nfe_equivalent: float | None = None


class VariantCache:
    """Records by key: one JSON and one safetensors file each; nothing is kept without a folder.

    Args:
        folder: The folder that holds them.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        if folder:
            folder.mkdir(parents=True, exist_ok=True)

    def load(self, key: str) -> Record | None:
        """The record of a variant; None without one, or if its files do not read."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not self._folder:
            return None
        try:
            file = strict_json.read(self._folder / f"{key}.json", _File, "measured variant")
            tensors = load_file(self._folder / f"{key}.safetensors")
            latents, images = tensors["latents"], tensors["images"]
        except (ZeusError, OSError, KeyError, ValueError, SafetensorError):
            return None
        if digest(file.meaning) != key or not file.runs or latents.shape[:1] != images.shape[:1]:
            return None
        return Record(file.runs, latents, images, file.trajectory_errors, file.nfe_equivalent)

    def save(self, key: str, record: Record, meaning: dict[str, Any]) -> None:
        """Keeps a record, and beside it what the key is a digest of."""
        from safetensors.torch import save_file

        if not self._folder:
            return
        tensors = self._folder / f"{key}.safetensors"
        if len(record.runs) == 1 or not tensors.is_file():
            with write_atomically(tensors) as path:
                save_file({"latents": record.latents.contiguous(), "images": record.images.contiguous().clone()}, path)
        data = asdict(_File(meaning, record.runs, record.trajectory_errors, record.nfe_equivalent))
        with write_atomically(self._folder / f"{key}.json") as path:
            path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def digest(meaning: dict[str, Any]) -> str:
    """A key of everything that determines a variant: JSON data."""
    return hashlib.sha256(json.dumps(meaning, sort_keys=True).encode()).hexdigest()[:20]
