"""Files and folders that are either whole or not there."""

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from zeus_trt.errors import ZeusError
from zeus_trt.rename import rename_new, replace_folder
from zeus_trt.scratch import NEW, OLD, open_scratch, restore, sweep

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def digest_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def recover(path: Path) -> None:
    """Puts a folder back whose overwriting was cut off between two renames; does nothing where ``path`` exists.

    Never raises: what cannot be put back stays absent.
    """
    with contextlib.suppress(OSError, ValueError):
        restore(Path(os.path.realpath(path)))


def check_place(path: Path) -> None:
    """Refuses a place where no file can be written, before there is one to write.

    Raises:
        ZeusError: A folder, a device, or a file whose folder is missing or cannot be written.
    """
    path = Path(path)
    found = _look(path)
    if found and not stat.S_ISREG(found.st_mode):
        is_folder = stat.S_ISDIR(found.st_mode)
        raise _deny(path, os.strerror(errno.EISDIR) if is_folder else "it is a device or a pipe")
    folder = Path(os.path.realpath(path)).parent
    number = 0 if folder.is_dir() else errno.ENOENT
    number = number or (0 if os.access(folder, os.W_OK) else _explain_access(folder))
    if number:
        raise _deny(path, os.strerror(number))


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary path of the same name; its file takes the place of ``path`` if the block ends well.

    A link stays a link, and a file that exists keeps its permissions.

    Raises:
        ZeusError: As ``check_place``, or there is no room. The old file stays then.
    """
    path = Path(path)
    check_place(path)
    target = Path(os.path.realpath(path))
    with contextlib.ExitStack() as stack:
        with _explain_denial(path):
            sweep(target.parent)
            temporary = stack.enter_context(open_scratch(target.parent)) / NEW / target.name
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
            mode = stat.S_IMODE(temporary.stat().st_mode)
        with _explain_denial(path, _NO_ROOM):
            yield temporary
        with _explain_denial(path):
            temporary.chmod(mode)  # writers may put a file of another mode there
            _keep_permissions(target, temporary)
            _sync(temporary)
            os.replace(temporary, target)
            _sync(target.parent)


@contextmanager
def write_folder_atomically(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """Yields a temporary folder of the same name; it takes the place of ``path`` if the block ends well.

    A link stays a link, and what exists keeps its permissions. Of two writers that may not overwrite, one fails.

    Args:
        path: The folder to make.
        overwrite: Replace a folder that exists; the old one stays until the new one is whole.

    Raises:
        ZeusError: ``path`` exists (and ``overwrite`` is false), or it cannot be written, or there is no room. What was
            there stays then.
    """
    path = Path(path)
    _look(path)
    target = Path(os.path.realpath(path))
    with contextlib.ExitStack() as stack:
        with _explain_denial(path):
            stack.enter_context(_make_parents(target))
            sweep(target.parent)
            _check_folder(path, overwrite)
            scratch = stack.enter_context(open_scratch(target.parent))
            whole = scratch / NEW / target.name
            whole.mkdir()
        with _explain_denial(path, _NO_ROOM):
            yield whole
        with _explain_denial(path):
            _keep_permissions(target, whole)
            for content in (*whole.rglob("*"), whole):
                _sync(content)
            _move(whole, path, scratch / OLD / target.name, overwrite)
            _sync(target.parent)


def _check_folder(path: Path, overwrite: bool) -> None:
    found = _look(path)
    if found and not overwrite:
        raise ZeusError(f"output: got {path}, which exists; expected a new folder. Choose another, or overwrite it.")
    if found and not stat.S_ISDIR(found.st_mode):
        raise _deny(path, os.strerror(errno.ENOTDIR))


def _move(whole: Path, path: Path, aside: Path, overwrite: bool) -> None:
    """Gives the new folder its name, whatever came or went there since it was begun."""
    target = Path(os.path.realpath(path))
    while True:
        try:
            return rename_new(whole, target)
        except FileExistsError:
            _check_folder(path, overwrite)
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            return replace_folder(whole, target, aside)


@contextmanager
def _make_parents(target: Path) -> Iterator[None]:
    """Makes the folders above ``target``; those that were missing go again where nothing was put into them."""
    missing = [folder for folder in target.parents if not os.path.lexists(folder)]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _keep_permissions(old: Path, new: Path) -> None:
    """Gives a file that replaces an old one its mode and owner."""
    for content in (new, *(new.rglob("*") if new.is_dir() else ())):
        relative = content.relative_to(new)
        with contextlib.suppress(OSError):
            found, own = (old / relative).lstat(), content.lstat()
            if stat.S_IFMT(found.st_mode) != stat.S_IFMT(own.st_mode) or stat.S_ISLNK(own.st_mode):
                continue
            if (found.st_uid, found.st_gid) != (own.st_uid, own.st_gid):
                with contextlib.suppress(PermissionError):
                    os.chown(content, found.st_uid, found.st_gid)
            content.chmod(stat.S_IMODE(found.st_mode))


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # a mode that was kept, or Windows and its folders
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if path.is_file() or error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise  # some file systems have no such call for folders
    finally:
        os.close(descriptor)


def _look(path: Path) -> os.stat_result | None:
    """What is at ``path``, through links; None if nothing is.

    Raises:
        ZeusError: A name that cannot be, or one behind a folder that cannot be read.
    """
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _deny(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _deny(path, str(error)) from error


def _explain_access(folder: Path) -> int:
    try:
        is_read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except (OSError, AttributeError):  # the call is missing on Windows
        is_read_only = False
    return errno.EROFS if is_read_only else errno.EACCES


@contextmanager
def _explain_denial(path: Path, only: Collection[int] = ()) -> Iterator[None]:
    """Errors of the system become one sentence about ``path``: all of them, or those of these numbers."""
    try:
        yield
    except OSError as error:
        if only and error.errno not in only:
            raise
        raise _deny(path, error.strerror or str(error)) from error


def _deny(path: Path, reason: str) -> ZeusError:
    return ZeusError(
        f"output: got {path}, which cannot be written ({reason}); expected a place with room, in a folder that can be "
        "written. Choose another."
    )
