"""Exported bundles on disk, kept across tests, workers and runs while nothing changes that decides them."""

import functools
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch
from checkout import ROOT
from filelock import FileLock

from zeus_trt.export.folder import LIBRARIES
from zeus_trt.machine import find_version
from zeus_trt.runtime.engines.hardware import find_cpu

SOURCES = (
    "export/*.py", "runtime/**/*.py", "zeus_graph/*.py", "zeus_trt/**/*.py", "examples/models/**/*", "examples/*.py",
    "tests/conftest.py", "tests/tiny_subjects.py", "tests/export/pipelines.py", "tests/export/tiny_*.py",
)  # fmt: skip
PACKAGES = {*LIBRARIES, "transformers", "numpy", "onnx-ir", "onnxruntime-gpu"}
KEPT = 4  # digests: those of a few checkouts and branches
IN_USE = 3600  # seconds after its last use in which a folder stays: runs of other checkouts may be reading it


def digest_all() -> str:
    """SHA-256 over the sources and versions that decide what an export writes, and over what it measured on."""
    content = hashlib.sha256()
    words = [platform.python_version(), find_cpu().sm, str(os.cpu_count())]
    words += [f"{name} {find_version(name)}" for name in sorted(PACKAGES)]
    content.update("\n".join(words).encode())
    for path in sorted({path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file()}):
        data = path.read_bytes()
        content.update(f"\n{path.relative_to(ROOT)} {len(data)}\n".encode() + data)
    return content.hexdigest()[:16]


@functools.cache
def open_cache() -> Path:
    """The folder of the present digest; folders of older digests go, unless they were just used."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("ZEUS_TRT_TEST_CACHE") or Path(home) / "zeus-trt-tests")
    folder = root / digest_all()
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    with FileLock(root / "sweep.lock"):
        folders = sorted((path for path in root.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for old in folders[:-KEPT]:
            if time.time() - old.stat().st_mtime > IN_USE:
                shutil.rmtree(old, ignore_errors=True)
    return folder


def fetch_bundle(name: str, make: Callable[[Path], object], copy: Path) -> Path:
    """Copies a bundle of the cache to ``copy``; if it is not there, ``make`` writes it first, on one thread.

    Args:
        name: What is made: the same name must always be made alike.
        make: Exports to the path that it is passed.
        copy: A path that is free. Whoever changes the copy changes nothing of the cache.
    """
    kept = open_cache() / name
    kept.parent.mkdir(exist_ok=True)
    os.utime(kept.parent)
    with FileLock(kept.with_name(f"{name}.lock")):
        if not kept.exists():
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            try:
                shutil.rmtree(kept.with_name(f"{name}.new"), ignore_errors=True)  # of a run that was killed
                make(kept.with_name(f"{name}.new"))
                kept.with_name(f"{name}.new").rename(kept)
            finally:
                torch.set_num_threads(threads)
    return Path(shutil.copytree(kept, copy))
