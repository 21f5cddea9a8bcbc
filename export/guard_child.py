"""Program of the process that watches a build; ``guard.py`` starts it.

It gets the mark of the build and the build's process id. It ends when its stdin says that the build is done, and ends
what carries the mark when stdin closes without a word, or the build's process is gone.
"""

import contextlib
import os
import select
import signal
import sys
import time

INTERVAL = 0.5  # seconds; a child that was forked may hold stdin open after the build's process has gone
ROUNDS = 100


def wait_for_end(parent: int) -> bool:
    """Whether the build came to its own end."""
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], INTERVAL)[0]:
            return bool(os.read(sys.stdin.fileno(), 1))
    return False


def find_processes(mark: bytes, parent: bytes) -> list[int]:
    """Processes that carry the mark, and those of torch's compile workers that an earlier compilation started."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            environment, words = read_list(name, "environ"), read_list(name, "cmdline")
            is_worker = b"--parent=" + parent in words and any(b"compile_worker" in word for word in words)
            if mark in environment or is_worker:
                found.append(int(name))
    return found


def read_list(process: str, name: str) -> list[bytes]:
    """A file of ``/proc``; empty if the process has gone or is another user's."""
    try:
        with open(f"/proc/{process}/{name}", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def main() -> None:
    mark, parent = sys.argv[1:]
    if wait_for_end(int(parent)):
        return
    for _ in range(ROUNDS):
        processes = find_processes(mark.encode(), parent.encode())
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
