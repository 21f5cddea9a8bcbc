"""Compilers end with a build that is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zeus_trt.export import guard

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the guard reads /proc, which Linux has")

# A build in a process of its own, whose compiler starts another one, and forgets it; torch is not needed for that.
BUILD = f"""
import runpy, subprocess, sys
guard = runpy.run_path({guard.__file__!r})
with guard["kill_with_parent"]():
    compiler = "sleep 60 & echo $!; echo $$; exec sleep 60"
    subprocess.run(["setsid", "sh", "-c", compiler])
"""


def is_alive(process):
    """Whether it runs: what nobody waits for stays as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition):
    """Waits for half a minute at most."""
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


@contextlib.contextmanager
def start_build():
    """A build that compiles, and the processes that it started."""
    build = subprocess.Popen([sys.executable, "-c", BUILD], stdout=subprocess.PIPE, text=True, start_new_session=True)
    started = [int(build.stdout.readline()) for _ in range(2)]
    try:
        assert all(map(is_alive, started))
        yield build, started
    finally:
        build.kill()
        build.wait()
        build.stdout.close()
        for process in filter(is_alive, started):
            os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_compilers_end_with_a_killed_build(name):
    with start_build() as (build, started):
        os.kill(build.pid, getattr(signal, name))  # not to the group: what a terminal does is not enough
        build.wait(30)
        wait_for(lambda: not any(map(is_alive, started)))


def test_what_is_not_of_the_build_lives_on():
    other = subprocess.Popen(["sleep", "60"])
    try:
        with start_build() as (build, started):
            build.kill()
            wait_for(lambda: not any(map(is_alive, started)))
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_build_that_ends_leaves_its_processes_alone():
    """Torch's compile workers serve the next compilation."""
    with guard.kill_with_parent():
        worker = subprocess.Popen(["sleep", "60"])
    with pytest.raises(RuntimeError), guard.kill_with_parent():
        raise RuntimeError("the compiler refuses the program")
    try:
        assert worker.poll() is None
    finally:
        worker.kill()
        worker.wait()


def test_an_interrupted_build_ends_them_at_once():
    compilers = []

    def compile():
        with guard.kill_with_parent():
            compilers.append(subprocess.Popen(["sleep", "60"]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile()
    assert compilers[0].wait(30) == -signal.SIGKILL


def test_the_environment_is_as_before(monkeypatch):
    with guard.kill_with_parent():
        mark = os.environ[guard.VARIABLE]
        with guard.kill_with_parent():
            assert os.environ[guard.VARIABLE] == mark  # a second build, in another thread
        assert os.environ[guard.VARIABLE] == mark
    assert guard.VARIABLE not in os.environ
