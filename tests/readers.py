"""Every reader of files that may come from anywhere: (name, function of a path, function that writes a good file).

A reader either returns, or raises ZeusError with a message of one line. Nothing else may leave it, whatever the bytes.
"""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import diffusers
import numpy as np
import torch
from small_adapter import write_adapter
from small_bundle import STEPS, list_file, write_bundle

from zeus_trt.arrays import read_arrays
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.evaluation.timing import Run
from zeus_trt.evaluation.variant_cache import Record, VariantCache, digest
from zeus_trt.evaluation.variants import NamedPlan
from zeus_trt.export.precision import count_numbers
from zeus_trt.runtime import Bundle, Session
from zeus_trt.runtime.bundle.fused_weights import fuse
from zeus_trt.runtime.bundle.manifest import DIGEST, SCHEDULER_FILE, Manifest, seal, solver_name
from zeus_trt.runtime.scheduler import load_scheduler, read_config
from zeus_trt.zeus_graph import Plan, Predictor, SamplingProgram, SolverProgram, fold, json_file, load_plan, trace
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan, Measured

PLAN = Plan("FFXRF")


class Reader(NamedTuple):
    """One reader.

    Args:
        name: What it reads.
        read: Takes the path of the file.
        write: Makes a folder with a good file in it, and returns the file's path.
        takes_anything: Whether it takes other bytes too: weights are any numbers, and a cache that does not read is
            measured again.
    """

    name: str
    read: Callable[[Path], Any]
    write: Callable[[Path], Path]
    takes_anything: bool = False


def _bundle_file(name: str) -> Callable[[Path], Path]:
    return lambda folder: write_bundle(folder / "bundle") / name


def _open_bundle(manifest: Path) -> None:
    bundle = Bundle.open(manifest.parent)
    bundle.describe()
    with Session(bundle, backend="onnxruntime") as session:
        session.plan(STEPS, 1)


def _open_listed(file: Path, bundle: Path) -> None:
    """Opens a bundle whose manifest lists the file as it is now: the digests are those of whoever made it."""
    list_file(bundle, file.relative_to(bundle).as_posix())
    _open_bundle(bundle / "manifest.json")


def _read_signed(file: Path) -> None:
    """Opens a bundle whose manifest has a digest of what it holds now, if it is JSON at all."""
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        data = json.loads(file.read_bytes())
        if isinstance(data, dict):
            data.pop(DIGEST, None)
            file.write_text(seal(data))
    _open_bundle(file)


def _write_json(name: str, make: Callable[[], Any]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(make()))
        return folder / name

    return write


def _make_calibrated() -> Any:
    table = Predictor.from_table({2: {0: -1.0, 1: 2.0}, 3: {1: 1.0}})
    chosen = Measured(PLAN.with_predictor(table), 40.0)
    return CalibratedPlan(
        chosen, True, 41.0, (Measured(PLAN.with_predictor("zeus"), float("inf")),), STEPS, "default", "0" * 64,
        "onnxruntime", {"weights_sha256": "0" * 64}, {"held_out": (0, 4)}, {"recording": 5, "measuring": 5},
    ).to_json()  # fmt: skip


def _write_stats(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    products, responses = np.ones((2, 3, 3)), np.full((2, 1, 3), np.nan)
    TrajectoryStats(products, responses, (0, 1), {"a": 1}, 10).save(folder / "stats.npz")
    return folder / "stats.npz"


_MEANING = {"cell": 1}


def _write_variant(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        run = Run(1.0, 0.5, 0.5, 1.0, None, 5, 5, 0, "onnxruntime", "step", str(PLAN))
        record = Record((run,), torch.ones(1, 1, 2, 2), torch.ones(1, 3, 2, 2), (0.0,), None)
        VariantCache(folder / "cells").save(digest(_MEANING), record, _MEANING)
        return folder / "cells" / f"{digest(_MEANING)}.{name}"

    return write


def _load_variant(file: Path) -> Any:
    return VariantCache(file.parent).load(file.stem)


def _make_sampling() -> Any:
    return fold(trace(diffusers.EulerDiscreteScheduler(), STEPS), PLAN).to_json()


def _adapter_file(name: str) -> Callable[[Path], Path]:
    return lambda folder: write_adapter(folder / "bundle") / name


def _open_adapter(file: Path) -> None:
    """Fuses the adapter of a bundle whose manifest lists the file as it is now."""
    bundle = file.parents[2]
    list_file(bundle, file.relative_to(bundle).as_posix())
    fuse(Bundle.open(bundle).with_adapter("ink"))


READERS: tuple[Reader, ...] = (
    Reader("adapter", _open_adapter, _adapter_file("adapters/ink/adapter.json")),
    Reader("adapter: factors", _open_adapter, _adapter_file("adapters/ink/factors.safetensors")),
    Reader("adapter: places", _open_adapter, _adapter_file("graphs/fp32/parameters.json")),
    Reader("adapter: graph", _open_adapter, _adapter_file("graphs/fp32/denoiser.onnx")),
    Reader("bundle: manifest", _open_bundle, _bundle_file("manifest.json")),
    Reader(
        "bundle: graph", lambda file: _open_listed(file, file.parents[2]), _bundle_file("graphs/fp32/denoiser.onnx")
    ),
    Reader(
        "bundle: weights",
        lambda file: _open_listed(file, file.parents[2]),
        _bundle_file("graphs/fp32/denoiser.onnx.data"),
        True,
    ),
    Reader("bundle: scheduler", lambda file: _open_listed(file, file.parents[1]), _bundle_file(SCHEDULER_FILE)),
    Reader("bundle: solver", lambda file: _open_listed(file, file.parents[1]), _bundle_file(solver_name(STEPS))),
    Reader("manifest", lambda file: Manifest.from_json(file.read_bytes()), _bundle_file("manifest.json")),
    Reader("manifest, signed", _read_signed, _bundle_file("manifest.json")),
    Reader("scheduler config", read_config, _bundle_file(SCHEDULER_FILE)),
    Reader("scheduler", load_scheduler, _bundle_file(SCHEDULER_FILE)),
    Reader("solver program", SolverProgram.load, _bundle_file(solver_name(STEPS))),
    Reader("sampling program", SamplingProgram.load, _write_json("sampling.json", _make_sampling)),
    Reader("step plan", lambda file: load_plan(str(file)), _write_json("plan.json", PLAN.to_json)),
    Reader(
        "predictor",
        lambda file: Predictor.from_json(json_file.load(file, "predictor")),
        _write_json("predictor.json", Predictor.from_table({2: {0: -1.0, 1: 2.0}}).to_json),
    ),
    Reader("calibrated plan", CalibratedPlan.load, _write_json("calibrated.json", _make_calibrated)),
    Reader("calibrated plan, given", lambda file: load_plan(str(file)), _write_json("c.json", _make_calibrated)),
    Reader("plan of a comparison", lambda file: NamedPlan.read(str(file)), _write_json("c.json", _make_calibrated)),
    Reader("recorded trajectories", TrajectoryStats.load, _write_stats),
    Reader("arrays", lambda file: read_arrays(file, "arrays"), _write_stats),
    Reader("measured variant", lambda file: VariantCache(file.parent).load(file.stem), _write_variant("json"), True),
    Reader(
        "tensors of a variant",
        lambda file: VariantCache(file.parent).load(file.stem),
        _write_variant("safetensors"),
        True,
    ),
    Reader("precision of weights", count_numbers, _write_variant("safetensors")),
)
