"""Hidden folders where new content waits until it is whole; what a dead writer left in them is found and removed."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no locks, so leftovers stay
    fcntl = None  # type: ignore[assignment]

PREFIX = ".zeus-trt-"
NEW, OLD = "new", "old"
"""Folders inside: the new content, and the old one while it is aside. Each holds it by the name of its target."""

_LOCK = "lock"
_PATIENCE = 2.0  # seconds; a live writer is between two renames for far less


@contextlib.contextmanager
def open_scratch(parent: Path) -> Iterator[Path]:
    """Yields a hidden folder in ``parent``, locked while this process lives, with the folder ``NEW`` in it.

    It is removed afterwards, unless it holds the only copy of what was set aside.

    Raises:
        OSError: ``parent`` cannot be written.
    """
    scratch, lock = _make(parent)
    try:
        (scratch / NEW).mkdir(mode=0o700)
        yield scratch
    finally:
        if not _find_lost(scratch):
            shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep(parent: Path) -> None:
    """Restores what dead writers set aside in ``parent``, and removes the rest of what they left there."""
    for scratch in _list(parent):
        with _take_over(scratch) as is_dead, contextlib.suppress(OSError):  # of another user, in a shared folder
            if is_dead:
                for content in _find_lost(scratch):
                    with contextlib.suppress(OSError):
                        content.rename(parent / content.name)
                if not _find_lost(scratch):
                    shutil.rmtree(scratch, ignore_errors=True)


def restore(target: Path) -> None:
    """Puts ``target`` back if it is absent because its writer died, or waits for a writer that is at it."""
    end = time.monotonic() + _PATIENCE
    while not os.path.lexists(target):
        aside = [scratch / OLD / target.name for scratch in _list(target.parent)]
        lost = [content for content in aside if content in _find_lost(content.parent.parent)]
        if not lost or time.monotonic() > end:
            return
        for content in lost:
            with _take_over(content.parent.parent) as is_dead, contextlib.suppress(OSError):
                if is_dead:
                    content.rename(target)
        time.sleep(0.01)


def _find_lost(scratch: Path) -> list[Path]:
    """Old content aside whose target is absent and whose successor is still in ``NEW``: the overwriting was cut off.

    Without a successor the overwriting was done, and the target was removed by somebody later.
    """
    aside = scratch / OLD
    contents = list(aside.iterdir()) if aside.is_dir() else []
    return [
        content
        for content in contents
        if (scratch / NEW / content.name).exists() and not os.path.lexists(scratch.parent / content.name)
    ]


def _list(parent: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return [path for path in parent.glob(f"{PREFIX}*") if path.is_dir() and not path.is_symlink()]
    return []


def _make(parent: Path) -> tuple[Path, int | None]:
    while True:
        scratch = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            return scratch, _lock(scratch)
        except (BlockingIOError, FileNotFoundError):
            continue  # another writer swept it before it was locked
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


@contextlib.contextmanager
def _take_over(scratch: Path) -> Iterator[bool]:
    """Yields whether the writer is dead; nobody else takes the folder over meanwhile."""
    lock = None
    with contextlib.suppress(OSError):
        lock = _lock(scratch)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _lock(scratch: Path) -> int | None:
    """A locked descriptor; None where the file system has no locks.

    Raises:
        BlockingIOError: Another writer, or a sweep, holds the lock.
        OSError: The folder is gone, or cannot be written.
    """
    descriptor = os.open(scratch / _LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.fstat(descriptor).st_nlink:
                raise BlockingIOError
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # no locks here
        pass
    os.close(descriptor)
    return None
