"""The bytes of an engine: read once, and those that were checked are those that are used."""

import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.engine_record import EngineRecord
from zeus_trt.scratch import NEW, open_scratch, sweep

_CHUNK = 1 << 20


class _Changed(Exception):
    """An engine's file is not what its record says."""

    def __init__(self, record: EngineRecord, how: str = "was changed since it was built"):
        super().__init__(f"its file {record.file} {how}")


def check_place(path: Path, root: Path) -> tuple[str, ...]:
    """Why a file cannot be one of the folder ``root``: missing, no file, or a link that leads out of it."""
    try:
        inside = path.resolve(strict=True).is_relative_to(root.resolve(strict=True))
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, names that no file can have
        if isinstance(error, FileNotFoundError):
            return (f"its file {path.name} is missing",)
        return (f"its file {path.name} cannot be found ({getattr(error, 'strerror', None) or error})",)
    if not inside:
        return (f"its file {path.name} is outside of the bundle",)
    return () if is_file else (f"its file {path.name} is no file",)


def read_file(path: Path, most: int) -> bytes:
    """The bytes of a regular file; never waits, as opening a pipe does.

    Raises:
        OSError: It cannot be read, is no file, or has more than ``most`` bytes.
    """
    with _open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return data


def read_engine(path: Path, record: EngineRecord) -> bytes:
    """The bytes of an engine.

    Raises:
        ZeusError: They are not those that were built.
    """
    try:
        with _open_engine(path, record) as file:
            data = file.read(record.size + 1)
    except OSError as error:
        raise _refuse(record, _Changed(record, f"cannot be read ({error.strerror})")) from error
    except _Changed as changed:
        raise _refuse(record, changed) from changed
    if len(data) != record.size or hashlib.sha256(data).hexdigest() != record.sha256:
        raise _refuse(record, _Changed(record))
    return data


def check_engine(path: Path, record: EngineRecord) -> tuple[str, ...]:
    """Why the bytes of an engine are not those that were built; nothing if they are."""
    try:
        for _ in _read_chunks(path, record):
            pass
    except _Changed as changed:
        return (str(changed),)
    return ()


@contextmanager
def copy_engine(path: Path, record: EngineRecord) -> Iterator[Path]:
    """Yields a checked copy of an engine in a folder of this user alone, where nobody changes it; it is deleted after.

    For libraries that load from a path. Copies of dead processes are deleted first.

    Raises:
        ZeusError: The bytes are not those that were built, or there is no room for the copy.
    """
    with ExitStack() as stack:
        try:
            folder = Path(tempfile.gettempdir())
            sweep(folder)
            copy = stack.enter_context(open_scratch(folder)) / NEW / record.file  # below a folder of mode 700
            with copy.open("xb") as target:
                target.writelines(_read_chunks(path, record))
        except _Changed as changed:
            raise _refuse(record, changed) from changed
        except OSError as error:
            raise ZeusError(
                f"engine: got no room for a copy of {record.file} ({error.strerror}); expected "
                f"{record.size / 2**20:.0f} MiB for temporary files. Free some, or set TMPDIR to another folder."
            ) from error
        yield copy


def _read_chunks(path: Path, record: EngineRecord) -> Iterator[bytes]:
    """The bytes of an engine as they are read; at their end raises _Changed if they are not those of the record."""
    digest, left = hashlib.sha256(), record.size
    try:
        with _open_engine(path, record) as file:
            while left >= 0 and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
                left -= len(chunk)
                yield chunk
    except OSError as error:
        raise _Changed(record, f"cannot be read ({error.strerror})") from error
    if left or digest.hexdigest() != record.sha256:
        raise _Changed(record)


def _open_engine(path: Path, record: EngineRecord) -> BinaryIO:
    file = _open(path)
    if os.fstat(file.fileno()).st_size != record.size:  # before memory is taken for as much as the record says
        file.close()
        raise _Changed(record)
    return file


def _open(path: Path) -> BinaryIO:
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "no file", str(path))
    return os.fdopen(number, "rb")


def _refuse(record: EngineRecord, reason: Exception) -> ZeusError:
    return ZeusError(
        f"engine: got the {record.spec.backend} engine {record.key} ({reason}); expected the bytes that were built. "
        "Build it again."
    )
