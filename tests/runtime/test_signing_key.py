"""The key that signs engines: made once, and used only if nobody else can have it."""

import os
import stat
import subprocess
import sys
import threading

import pytest
from aot_double import refuse, write

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle import signing_key
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR, describe_engines
from zeus_trt.runtime.bundle.signing_key import make_key, read_key
from zeus_trt.runtime.engines.choose import choose_engine


def test_the_key(home):
    key = make_key()
    assert len(key) == 32
    assert make_key() == read_key() == key
    assert [file.name for file in home.iterdir()] == ["engine.key"]
    assert stat.S_IMODE((home / "engine.key").stat().st_mode) == 0o600


def test_the_folder_of_the_key_is_private(tmp_path, monkeypatch):
    monkeypatch.delenv("ZEUS_TRT_DATA_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    before = os.umask(0)
    try:
        make_key()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "share" / "zeus-trt").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "share" / "zeus-trt" / "engine.key").stat().st_mode) == 0o600
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert signing_key.find_data_folder().is_relative_to(tmp_path)
    monkeypatch.setenv("ZEUS_TRT_DATA_HOME", "relative")
    with pytest.raises(ZeusError, match="ZEUS_TRT_DATA_HOME: got relative; expected an absolute path"):
        make_key()


def _swap_link(file):
    file.rename(file.with_name("other"))
    file.symlink_to("other")


def _swap_folder(file):
    file.unlink()
    file.mkdir()


def _swap_pipe(file):
    file.unlink()
    os.mkfifo(file, 0o600)


SPOILED_KEYS = {
    "readable by a group": (lambda file: file.chmod(0o640), "has mode 640; expected a file of yours of mode 600"),
    "writable by all": (lambda file: file.chmod(0o602), "has mode 602"),
    "in a folder of all": (
        lambda file: file.parent.chmod(0o777),
        "has mode 777; expected one that you alone",
    ),
    "short": (lambda file: file.write_bytes(b"k" * 31), "with 31 bytes; expected 32"),
    "long": (lambda file: file.write_bytes(b"k" * 33), "with 33 bytes; expected 32"),
    "empty": (lambda file: file.write_bytes(b""), "with 0 bytes; expected 32"),
    "a link": (_swap_link, "does not open"),
    "a folder": (_swap_folder, "is no file"),
    "a pipe": (_swap_pipe, "is no file"),
}


@pytest.mark.parametrize("name", SPOILED_KEYS)
def test_a_key_that_cannot_be_trusted(home, engines, loaded, name):
    spoil, reason = SPOILED_KEYS[name]
    write(engines)
    spoil(home / "engine.key")
    refuse(engines, reason)
    with pytest.raises(ZeusError, match=reason):
        make_key()
    assert reason.partition(";")[0] in describe_engines(engines)
    assert loaded == []
    choose_engine(engines, AOT_INDUCTOR, "cpu", trust_engines=True)  # needs no key


@pytest.mark.parametrize("home", ["rel", ".", "a/b"])
def test_a_home_of_the_working_folder_is_none(monkeypatch, home):
    monkeypatch.delenv("ZEUS_TRT_DATA_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    with pytest.raises(ZeusError, match="got no home folder"):
        read_key()


def test_a_key_of_another_user(home, monkeypatch):
    make_key()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ZeusError, match="belongs to user"):
        read_key()


@pytest.mark.parametrize("place", ["in a file", "in nothing that can be made"])
def test_no_place_for_the_key(tmp_path, monkeypatch, place):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ZEUS_TRT_DATA_HOME", str(tmp_path / "file" / "x") if "file" in place else "/proc/nothing")
    assert read_key() is None
    with pytest.raises(ZeusError, match=r"which cannot be written .*Set ZEUS_TRT_DATA_HOME"):
        make_key()


def test_threads_that_make_the_key_at_once(home):
    start, keys = threading.Barrier(8), []

    def make():
        start.wait()
        keys.append(make_key())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1
    assert [file.name for file in home.iterdir()] == ["engine.key"]


def test_processes_that_make_the_key_at_once(home):
    """The module alone, since torch takes seconds to import."""
    code = (
        "import runpy, sys, types\n"
        "fault = types.ModuleType('zeus_trt.errors'); fault.ZeusError = Exception\n"
        "sys.modules |= {'zeus_trt': types.ModuleType('zeus_trt'), 'zeus_trt.errors': fault}\n"
        "sys.stdin.read()\n"
        f"print(runpy.run_path({signing_key.__file__!r})['make_key']().hex())\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for child in children:
        child.stdin.close()
    keys = {child.stdout.read().strip() for child in children}
    for child in children:
        child.stdout.close()
        assert child.wait() == 0
    assert keys == {read_key().hex()}
