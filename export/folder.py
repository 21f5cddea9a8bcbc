"""The folder of a bundle while it is written."""

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.files import digest_file, write_folder_atomically
from zeus_trt.machine import LIBRARIES, find_version
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.engine_folder import FOLDER as ENGINES
from zeus_trt.runtime.bundle.manifest import FILE_NAME, NETWORKS, FileEntry, Graph, Manifest, solver_name
from zeus_trt.runtime.bundle.manifest_check import check_manifest
from zeus_trt.runtime.menu import FOLDER
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan
from zeus_trt.zeus_graph.trace import UntraceableError, trace

STEPS = (20, 30, 50)


@contextlib.contextmanager
def open_folder(output: Path, overwrite: bool) -> Iterator[Path]:
    """Yields a folder that becomes ``output`` if the block ends well; nothing is left of it otherwise.

    Raises:
        ZeusError: ``output`` exists, and is no bundle that may be replaced.
    """
    if overwrite and output.exists() and not (output / FILE_NAME).is_file():
        raise ZeusError(f"output: got {output}, which is no bundle; expected one to replace. Choose another folder.")
    with write_folder_atomically(output, overwrite) as folder:
        yield folder


def write_solvers(scheduler: Any, steps: Sequence[int], folder: Path) -> None:
    """Writes the scheduler's config, and its traced solver for every step count where it is linear.

    A schedule that is shifted by the size of the picture (FLUX, SD3.5) is traced for each run.
    """
    scheduler.save_config(folder / "scheduler")
    (folder / "solvers").mkdir()
    if scheduler.config.get("use_dynamic_shifting"):
        return
    with contextlib.suppress(UntraceableError):
        for num_steps in steps:
            trace(scheduler, num_steps).save(folder / solver_name(num_steps))


def seal(manifest: Manifest, folder: Path) -> Manifest:
    """Writes the manifest, with the versions in use and the size and digest of every file in the folder.

    Raises:
        ZeusError: The manifest has parts that do not fit each other, or a number that is not finite.
    """
    versions = {name: find_version(name) or "missing" for name in LIBRARIES}
    manifest = dataclasses.replace(manifest, versions=versions, files=list_files(folder))
    _write_manifest(manifest, folder)
    return manifest


def add_graph(bundle: Bundle, graph: Graph, folder: Path) -> None:
    """Completes a folder with the files of a graph to a copy of the bundle that has this graph too.

    Args:
        bundle: The bundle. Its files get a second name in the copy where the file system has such links.
        graph: The graph, which replaces one of the same precision.
        folder: Holds nothing but the graph's files.

    Raises:
        ZeusError: As ``seal``.
    """
    graphs = [one for one in bundle.manifest.graphs if one.precision != graph.precision]
    _complete(bundle, folder, Path(graph.file).parent, graphs=(*graphs, graph))


def add_plans(bundle: Bundle, key: str, plans: Sequence[CalibratedPlan]) -> None:
    """Puts plans into a bundle, which is replaced at once.

    Args:
        bundle: The bundle.
        key: Names the folder of the plans, whose old ones go.
        plans: Calibrated plans, the cheapest first.

    Raises:
        ZeusError: The bundle cannot be written.
    """
    with replace_files(bundle, Path(FOLDER, key)) as folder:
        for number, plan in enumerate(plans):
            plan.save(folder / f"{number:02}.json")


@contextlib.contextmanager
def replace_files(bundle: Bundle, place: Path) -> Iterator[Path]:
    """Yields a new folder, which becomes ``place`` in the bundle if the block ends well.

    The bundle is replaced at once.

    Raises:
        ZeusError: The bundle cannot be written.
    """
    with write_folder_atomically(bundle.path, overwrite=True) as folder:
        (folder / place).mkdir(parents=True)
        yield folder / place
        _complete(bundle, folder, place)


def _complete(bundle: Bundle, folder: Path, place: Path, **changes: Any) -> None:
    """Adds to a folder all of a bundle but what it had at ``place``, and a manifest with these changes."""
    kept = {name: entry for name, entry in bundle.manifest.files.items() if Path(name).parent != place}
    files = kept | list_files(folder)
    replaced = (bundle.path / place, bundle.path / FILE_NAME)

    def ignore(path: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(path, name) in replaced]

    shutil.copytree(bundle.path, folder, symlinks=True, ignore=ignore, copy_function=_link, dirs_exist_ok=True)
    _write_manifest(dataclasses.replace(bundle.manifest, files=files, **changes), folder)


def list_files(folder: Path) -> dict[str, FileEntry]:
    """Size and digest of every file in a folder, by its path in it, but for the bundles of networks, and engines."""
    own = (folder / NETWORKS, folder / ENGINES)  # they have their own manifests and records
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and not any(path.is_relative_to(one) for one in own)
    )
    return {path.relative_to(folder).as_posix(): FileEntry(path.stat().st_size, digest_file(path)) for path in paths}


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write_manifest(manifest: Manifest, folder: Path) -> None:
    try:
        check_manifest(manifest)
        text = manifest.to_json()
    except ValueError as error:
        raise ZeusError(
            f"manifest: got one that no reader takes ({error}); expected one that opens. "
            "Report it: this is a fault of the export."
        ) from error
    (folder / FILE_NAME).write_text(text, encoding="utf-8")
