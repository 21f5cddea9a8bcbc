"""The folder of a bundle while it is written."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.files import digest_file, write_folder_atomically
from zeus_trt.machine import LIBRARIES, find_version
from zeus_trt.runtime.bundle.manifest import FILE_NAME, FileEntry, Manifest, solver_name
from zeus_trt.runtime.bundle.manifest_check import check_manifest
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
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = dataclasses.replace(
        manifest,
        versions={name: find_version(name) or "missing" for name in LIBRARIES},
        files={
            path.relative_to(folder).as_posix(): FileEntry(path.stat().st_size, digest_file(path)) for path in paths
        },
    )
    try:
        check_manifest(manifest)
        text = manifest.to_json()
    except ValueError as error:
        raise ZeusError(
            f"manifest: got one that no reader takes ({error}); expected one that opens. "
            "Report it: this is a fault of the export."
        ) from error
    (folder / FILE_NAME).write_text(text, encoding="utf-8")
    return manifest
