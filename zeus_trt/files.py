"""Files that are either whole or not there."""

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


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside ``path``; it takes the place of ``path`` if the block ends well.

    Raises:
        ZeusError: The folder is missing or cannot be written.
    """
    path = Path(path)
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
        raise ZeusError(
            f"output: got {path}, which cannot be written ({error.strerror}); expected a place in a writable folder. "
            "Choose another."
        ) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
