"""Renames that replace a whole folder at once, or nothing at all."""

import contextlib
import ctypes
import errno
import os
import shutil
import sys
from functools import cache
from pathlib import Path
from typing import Any

_HERE = -100  # AT_FDCWD
_NOREPLACE, _EXCHANGE = 1, 2


def rename_new(source: Path, target: Path) -> None:
    """Renames a folder to a name that is free.

    Raises:
        FileExistsError: It is taken.
        OSError: It cannot be renamed.
    """
    try:
        _rename(source, target, _NOREPLACE)
    except FileExistsError:
        raise
    except OSError:  # no such call here: rename() itself refuses files, and folders with something in them
        try:
            source.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.ENOTDIR):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
            raise


def replace_folder(source: Path, target: Path, aside: Path) -> None:
    """Gives a folder the name of another one, which is elsewhere afterwards: at ``source``, or at ``aside``.

    Where the file system cannot exchange two names, ``target`` is absent for a moment: what dies in it leaves the old
    folder at ``aside`` and the new one at ``source``.

    Raises:
        FileExistsError: Another writer took the name in that moment.
        FileNotFoundError: ``target`` was removed.
        OSError: It cannot be renamed; ``target`` is as before.
    """
    try:
        _rename(source, target, _EXCHANGE)
        return
    except OSError:
        aside.parent.mkdir(exist_ok=True)
    try:
        target.rename(aside)
        rename_new(source, target)
    except FileExistsError:
        shutil.rmtree(aside)
        raise
    except BaseException:
        if not os.path.lexists(target):
            with contextlib.suppress(FileNotFoundError):
                aside.rename(target)
        raise


def _rename(source: Path, target: Path, flags: int) -> None:
    call = _find_renameat2()
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(_HERE, os.fsencode(source), _HERE, os.fsencode(target), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(source), None, str(target))


@cache
def _find_renameat2() -> Any:
    """The call of Linux, which Python does not offer."""
    if sys.platform != "linux":
        return None
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return call
