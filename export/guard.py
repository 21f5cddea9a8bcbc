"""Compilers that end with the process that builds, however that ends."""

import contextlib
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "ZEUS_TRT_BUILD"
"""Marks in the environment all that a build starts, and what that starts."""

_CHILD = Path(__file__).with_name("guard_child.py")
_lock = threading.Lock()
_mark = ""
_builds = 0


@contextlib.contextmanager
def kill_with_parent() -> Iterator[None]:
    """Processes that are started within the block, and those that they start, do not outlive it if it is cut short.

    A killed process runs nothing any more, and a compiler's own children know nothing of it. So a second process
    watches this one, and ends what carries the mark. Linux only: elsewhere nothing is watched.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    with _marked() as mark:
        environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CHILD), f"{VARIABLE}={mark}", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
            start_new_session=True,
        )  # fmt: skip
        is_whole = False
        try:
            yield
            is_whole = True
        except Exception:  # a fault of the build: its compilers have ended
            is_whole = True
            raise
        finally:
            guard.communicate(b"done" if is_whole else b"")
            if not is_whole:
                _forget_workers()


@contextlib.contextmanager
def _marked() -> Iterator[str]:
    """One mark for all builds of the process, since they share its environment."""
    global _mark, _builds
    with _lock:
        _mark = _mark if _builds else uuid.uuid4().hex
        _builds += 1
        os.environ[VARIABLE] = _mark
    try:
        yield _mark
    finally:
        with _lock:
            _builds -= 1
            if not _builds:
                os.environ.pop(VARIABLE, None)


def _forget_workers() -> None:
    """Torch makes its pool of compile workers anew at the next compilation."""
    if found := sys.modules.get("torch._inductor.async_compile"):
        found.shutdown_compile_workers()
