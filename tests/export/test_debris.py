"""Exports and builds that end early: one sentence, and nothing is left."""

import contextlib
import errno
import importlib.util
import os
import resource
import shutil
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from zeus_trt.cli import main

NEEDS_RTX = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx_bindings") is None, reason="needs tensorrt-rtx-cu13-bindings"
)


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def list_files(folder):
    return sorted(folder.rglob("*"))


@contextlib.contextmanager
def limit_files(size):
    """Lets this process, and those that it starts, write no file that is larger: as a full disk does, in the middle."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def bundle(export_tiny, tmp_path):
    return shutil.copytree(export_tiny().path, tmp_path / "bundle")


def check_refusal(done, reason):
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit)
    errors = [line for line in done.stderr.splitlines() if "Error" in line]
    assert len(errors) == 1
    assert reason in errors[0]


def test_a_full_disk_in_the_middle_of_an_export(tiny_model, tmp_path):
    with limit_files(4096):
        done = call("export", tiny_model, "-o", tmp_path / "bundle")
    check_refusal(done, "(File too large); expected a place with room")
    assert list_files(tmp_path) == []


def test_no_space_left_on_the_device(tiny_model, tmp_path, monkeypatch):
    def fail(captured, path):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half a graph")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path.name)

    monkeypatch.setattr("zeus_trt.export.export.export_capture", fail)
    check_refusal(call("export", tiny_model, "-o", tmp_path / "bundle"), "No space left on device")
    assert list_files(tmp_path) == []


@NEEDS_RTX
def test_a_full_disk_in_the_middle_of_a_build(bundle):
    before = list_files(bundle.parent)
    with limit_files(100_000):
        done = call("build", bundle, "--backend", "tensorrt-rtx", "--gpu", "sm_89")
    check_refusal(done, "(File too large); expected a place with room")
    assert list_files(bundle.parent) == before


@pytest.mark.parametrize(
    "command", [pytest.param("export", marks=pytest.mark.extra), pytest.param("build", marks=NEEDS_RTX)]
)
def test_ctrl_c_in_the_middle(bundle, tiny_model, command):
    words = {
        "export": ["export", tiny_model, "-o", bundle.parent / "other"],
        "build": ["build", bundle, "--backend", "tensorrt-rtx", "--gpu", "sm_89"],
    }[command]
    before = list_files(bundle.parent)
    process = subprocess.Popen(
        [sys.executable, "-m", "zeus_trt", *map(str, words)], stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        while process.poll() is None and list_files(bundle.parent) == before:
            time.sleep(0.02)
        time.sleep(0.5 if command == "export" else 0.1)  # of a build that takes a second
        assert list_files(bundle.parent) != before, "it ended before it was interrupted"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert stderr.strip().endswith("Interrupted.")
    assert "Traceback" not in stderr
    assert list_files(bundle.parent) == before
