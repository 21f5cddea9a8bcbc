"""Files that are either whole or not there."""

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zeus_trt.errors import ZeusError


def digest_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def check_place(path: Path) -> None:
    """Refuses a place where no file can be written, before there is one to write.

    Raises:
        ZeusError: A folder, or a file whose folder is missing or cannot be written.
    """
    folder = path.absolute().parent
    reason = errno.EISDIR if path.is_dir() else 0 if folder.is_dir() else errno.ENOENT
    reason = reason or (0 if os.access(folder, os.W_OK) else errno.EACCES)
    if reason:
        raise _deny(path, os.strerror(reason))


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; it takes the place of ``path`` if the block ends well.

    Raises:
        ZeusError: As ``check_place``.
    """
    path = Path(path)
    check_place(path)
    with _explain_denial(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def write_folder_atomically(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary folder beside ``path``; it takes the place of ``path`` if the block ends well.

    Args:
        path: The folder to make.
        overwrite: Replace a folder that exists; the old one stays until the new one is whole.

    Raises:
        ZeusError: ``path`` exists (and ``overwrite`` is false), or its parent cannot be written.
    """
    path = Path(path).absolute()
    if path.exists() and not overwrite:
        raise ZeusError(f"output: got {path}, which exists; expected a new folder. Choose another, or use --overwrite.")
    with _explain_denial(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        whole, old = temporary / "new", temporary / "old"
        whole.mkdir()
        yield whole
        if path.exists():
            path.rename(old)
        whole.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _explain_denial(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _deny(path, error.strerror) from error


def _deny(path: Path, reason: str | None) -> ZeusError:
    return ZeusError(
        f"output: got {path}, which cannot be written ({reason}); expected a place in a writable folder. "
        "Choose another."
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
