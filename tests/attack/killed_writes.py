"""Kills writers, and checks what they leave. Run as a script: it forks a writer per kill, and has no other threads.

Usage: killed_writes.py calls|moments PLACE EXCHANGE [COUNT [SEED]]
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from zeus_trt import rename
from zeus_trt.files import recover, write_atomically, write_folder_atomically

LENGTH = 20_000
CALLS = ("rename", "replace", "fsync", "mkdir", "rmdir", "unlink", "open", "close")


def write(place: Path, word: str) -> None:
    """Writes a folder of three files that hold one word again and again, or such a file."""
    if place.suffix:
        with write_atomically(place) as file:
            file.write_text(word * LENGTH)
        return
    with write_folder_atomically(place, overwrite=True) as folder:
        (folder / "sub").mkdir()
        for name in ("a", "b", "sub/c"):
            (folder / name).write_text(word * LENGTH)


def read(place: Path) -> str | None:
    """The word that is everywhere in it; None if nothing is there."""
    recover(place)
    if not place.exists():
        return None
    found = [place] if place.suffix else [place / "a", place / "b", place / "sub" / "c"]
    words = {file.read_text() for file in found}
    assert len(words) == 1, "a mixture of old and new"
    text = words.pop()
    assert len(text) == LENGTH * 3, f"{len(text)} characters"
    return text[:3]


def fork(place: Path, word: str) -> int:
    """Starts a writer."""
    child = os.fork()
    if not child:
        write(place, word)
        os._exit(0)
    return child


def die_at(stop: int) -> None:
    """Makes this process die before or after its call number ``stop`` of the system."""
    left = [stop]

    def count() -> None:
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    def watch(call):
        def watched(*args, **options):
            count()
            result = call(*args, **options)
            count()
            return result

        return watched

    for name in CALLS:
        setattr(os, name, watch(getattr(os, name)))
    rename._rename = watch(rename._rename)


def check(place: Path, old: str | None, new: str) -> None:
    """Wholly old or wholly new; and the next write leaves nothing else."""
    found = read(place)
    assert found in (old, new), f"found {found} instead of {old} or {new}"
    write(place, "end")
    assert read(place) == "end"
    assert os.listdir(place.parent) == [place.name], os.listdir(place.parent)


def kill_at_calls(place: Path) -> int:
    """A kill at every call of a first write, and of an overwrite."""
    kills = 0
    for old in (None, "old"):
        stop = 0
        while True:
            prepare(place, old)
            child = os.fork()
            if not child:
                die_at(stop)
                write(place, "new")
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            check(place, old, "new")
            if os.WIFEXITED(status):
                assert os.WEXITSTATUS(status) == 0
                break
            stop += 1
        kills += stop
    return kills


def kill_at_moments(place: Path, count: int, seed: int) -> int:
    """Kills at random moments of a first write, and of an overwrite; how many came in time."""
    draw, kills = random.Random(seed), 0
    write(place, "old")
    began = time.perf_counter()
    os.waitpid(fork(place, "old"), 0)
    lasts = time.perf_counter() - began
    for number in range(count):
        old = "old" if number % 2 else None
        prepare(place, old)
        child = fork(place, "new")
        time.sleep(draw.uniform(0, lasts))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        check(place, old, "new")
    return kills


def prepare(place: Path, old: str | None) -> None:
    """Nothing there, or the old content."""
    if old:
        write(place, old)
    elif place.exists():
        place.rename(place.parent.parent / f"gone-{time.monotonic_ns()}")


def main() -> None:
    """Prints the number of kills."""
    kind, place, exchange, *more = sys.argv[1:]
    if exchange == "False":
        rename._find_renameat2 = lambda: None
    kills = kill_at_calls(Path(place)) if kind == "calls" else kill_at_moments(Path(place), *map(int, more))
    print(kills)


if __name__ == "__main__":
    main()
