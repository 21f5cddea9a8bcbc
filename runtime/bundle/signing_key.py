"""The key by which this machine knows the engines that it built: 32 random bytes in the user's data folder."""

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path

from zeus_trt.errors import ZeusError

DATA_VARIABLE = "ZEUS_TRT_DATA_HOME"
FILE_NAME = "engine.key"
SIZE = 32

_ADVICE = f"Delete it and build the engines again, or set {DATA_VARIABLE} to another folder."


def find_data_folder() -> Path:
    """The folder of the user's own data: ``ZEUS_TRT_DATA_HOME``, else the place that the system has for it.

    Raises:
        ZeusError: ``ZEUS_TRT_DATA_HOME`` is a relative path, or the user has no home folder.
    """
    if asked := os.environ.get(DATA_VARIABLE):
        if not os.path.isabs(asked):
            raise ZeusError(f"{DATA_VARIABLE}: got {asked}; expected an absolute path. Change it.")
        return Path(asked)
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "zeus-trt"
    shared = os.environ.get("XDG_DATA_HOME", "")
    if os.path.isabs(shared):  # the XDG specification ignores relative paths
        return Path(shared) / "zeus-trt"
    try:
        home = Path.home()
        is_usable = home.is_absolute()  # else whoever makes the working folder would bring the key
    except RuntimeError:
        is_usable = False
    if not is_usable:
        raise ZeusError(f"{DATA_VARIABLE}: got no home folder to keep data in; expected one. Set it.")
    return home / ("Library/Application Support" if sys.platform == "darwin" else ".local/share") / "zeus-trt"


def read_key() -> bytes | None:
    """The key; None before it is made.

    Raises:
        ZeusError: A file that others can read or could have written, or that holds no key.
    """
    path = find_data_folder() / FILE_NAME
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        _check_folder(path.parent)
        file = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ZeusError(
            f"key: got {path}, which does not open ({error.strerror}); expected a file of your own. {_ADVICE}"
        ) from error
    try:
        _check_file(path, os.fstat(file))
        key = os.read(file, SIZE + 1)
    finally:
        os.close(file)
    if len(key) != SIZE:
        raise ZeusError(f"key: got {path} with {len(key)} bytes; expected {SIZE}. {_ADVICE}")
    return key


def make_key() -> bytes:
    """The key, made at the first use. Of several processes that make it at once one wins, and all return its key.

    Raises:
        ZeusError: As ``read_key``, or the data folder cannot be written.
    """
    if key := read_key():
        return key
    path = find_data_folder() / FILE_NAME
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, fresh = tempfile.mkstemp(prefix=f".{FILE_NAME}.", dir=path.parent)  # mode 600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(os.urandom(SIZE))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # the key of another process that was faster
                os.link(fresh, path)  # unlike a rename it replaces nothing, and what appears is whole
        finally:
            os.unlink(fresh)
    except OSError as error:
        raise ZeusError(
            f"key: got {path.parent}, which cannot be written ({error.strerror}); expected a place for the key that "
            f"signs engines. Set {DATA_VARIABLE} to a folder that you can write."
        ) from error
    key = read_key()
    if key is None:
        raise ZeusError(f"key: got {path}, which vanished; expected it to stay. Try again.")
    return key


def _check_folder(folder: Path) -> None:
    """Refuses a folder in which others could replace the key."""
    found = folder.stat()
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        raise ZeusError(
            f"key: got the folder {folder}, which {_describe(found)}; expected one that you alone can write (mode "
            f"700). Change that, or set {DATA_VARIABLE} to another folder."
        )


def _check_file(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ZeusError(f"key: got {path}, which is no file; expected a file of {SIZE} bytes. {_ADVICE}")
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
        raise ZeusError(f"key: got {path}, which {_describe(found)}; expected a file of yours of mode 600. {_ADVICE}")
    if found.st_size != SIZE:
        raise ZeusError(f"key: got {path} with {found.st_size} bytes; expected {SIZE}. {_ADVICE}")


def _describe(found: os.stat_result) -> str:
    return f"belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o}"
