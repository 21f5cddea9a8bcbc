"""Writes that are cut off, refused, or raced: the old content or the new one, one sentence, and nothing else."""

import errno
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest

from zeus_trt import rename
from zeus_trt.errors import ZeusError
from zeus_trt.files import check_place, recover, write_atomically, write_folder_atomically
from zeus_trt.scratch import NEW, OLD, PREFIX

SCRIPT = Path(__file__).with_name("killed_writes.py")
PLACES = ["folder", "file.txt"]


@pytest.fixture
def memory():
    """A folder in memory where there is one: hundreds of writes are synced there in no time."""
    parent = Path("/dev/shm")
    folder = tempfile.mkdtemp(dir=parent if os.access(parent, os.W_OK) else None)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture(params=[True, False], ids=["exchange", "aside"])
def exchange(request, monkeypatch):
    """With the call that exchanges two names, and without."""
    if not request.param:
        monkeypatch.setattr(rename, "_find_renameat2", lambda: None)
    return request.param


def run_script(kind, folder, place, exchange, *more):
    (folder / "in").mkdir()
    words = [kind, folder / "in" / place, exchange, *more]
    done = subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_at_every_call_of_the_system(memory, place, exchange):
    assert run_script("calls", memory, place, exchange) > 50


@pytest.mark.parametrize("place", PLACES)
def test_kills_at_random_moments(memory, place, exchange):
    run_script("moments", memory, place, exchange, 50, 0)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_kills_on_a_disk(tmp_path, place, exchange):
    (tmp_path / "calls").mkdir()
    (tmp_path / "moments").mkdir()
    assert run_script("calls", tmp_path / "calls", place, exchange) > 50
    assert run_script("moments", tmp_path / "moments", place, exchange, 200, 1) > 0


def write(place, text, overwrite=True):
    if place.suffix:
        with write_atomically(place) as file:
            file.write_text(text)
    else:
        with write_folder_atomically(place, overwrite) as folder:
            (folder / "a").write_text(text)


def read(place):
    return (place if place.suffix else place / "a").read_text()


def race(place, overwrite, count=4):
    """Writers that all begin before one of them ends; who raised what."""
    barrier, raised = threading.Barrier(count), [None] * count

    def run(number):
        try:
            with write_folder_atomically(place, overwrite) as folder:
                (folder / "a").write_text(str(number))
                barrier.wait()
        except ZeusError as error:
            raised[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(place.parent) == [place.name]
    return raised


def test_one_of_two_writers_succeeds(tmp_path, exchange):
    raised = race(tmp_path / "folder", overwrite=False)
    winners = [number for number, error in enumerate(raised) if error is None]
    assert [str(number) for number in winners] == [read(tmp_path / "folder")]
    assert all("which exists" in str(error) for error in raised if error)


def test_writers_that_may_overwrite_all_succeed(tmp_path, exchange):
    write(tmp_path / "folder", "old")
    assert race(tmp_path / "folder", overwrite=True) == [None] * 4
    assert read(tmp_path / "folder") in "0123"


@pytest.mark.parametrize("place", PLACES)
def test_a_live_writer_is_not_swept(tmp_path, place):
    with write_atomically(tmp_path / "slow.txt") as file:
        file.write_text("slow")
        write(tmp_path / place, "quick")
    assert (tmp_path / "slow.txt").read_text() == "slow"
    assert sorted(os.listdir(tmp_path)) == sorted([place, "slow.txt"])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), ValueError()])
def test_an_interrupted_write_leaves_nothing(tmp_path, place, error):
    write(tmp_path / place, "old")
    before = sorted(tmp_path.rglob("*"))
    begin = write_atomically if "." in place else partial(write_folder_atomically, overwrite=True)
    with pytest.raises(type(error)), begin(tmp_path / place):
        raise error
    assert sorted(tmp_path.rglob("*")) == before
    assert read(tmp_path / place) == "old"


def test_an_interruption_between_the_two_renames(tmp_path, monkeypatch):
    write(tmp_path / "folder", "old")
    real, calls = Path.rename, []

    def interrupt(path, target):
        calls.append(target)
        if len(calls) == 3:  # the first is the attempt to take a free name, the second sets the old folder aside
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(rename, "_find_renameat2", lambda: None)
    monkeypatch.setattr(Path, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "folder", "new")
    assert len(calls) == 4
    assert read(tmp_path / "folder") == "old"
    assert os.listdir(tmp_path) == ["folder"]


def set_aside(folder, name, *, with_new):
    """What a writer leaves that died in the middle of an overwrite, or at its end."""
    scratch = folder / f"{PREFIX}abcdefgh"
    (scratch / OLD / name).mkdir(parents=True)
    (scratch / OLD / name / "a").write_text("old")
    (scratch / NEW).mkdir()
    if with_new:
        (scratch / NEW / name).mkdir()
    return scratch


def test_a_reader_finds_what_a_dead_writer_set_aside(tmp_path):
    set_aside(tmp_path, "folder", with_new=True)
    recover(tmp_path / "folder")
    assert read(tmp_path / "folder") == "old"


def test_a_writer_of_something_else_restores_it_too(tmp_path):
    set_aside(tmp_path, "folder", with_new=True)
    write(tmp_path / "file.txt", "text")
    assert read(tmp_path / "folder") == "old"
    assert sorted(os.listdir(tmp_path)) == ["file.txt", "folder"]


def test_what_was_removed_on_purpose_stays_away(tmp_path):
    set_aside(tmp_path, "folder", with_new=False)
    recover(tmp_path / "folder")
    write(tmp_path / "file.txt", "text")
    assert os.listdir(tmp_path) == ["file.txt"]


def test_without_overwrite_what_was_set_aside_counts_as_existing(tmp_path):
    set_aside(tmp_path, "folder", with_new=True)
    with pytest.raises(ZeusError, match="which exists"):
        write(tmp_path / "folder", "new", overwrite=False)
    assert read(tmp_path / "folder") == "old"


@pytest.mark.parametrize("name", ["", "missing", "x" * 300, "a\0b"])
def test_recovery_never_raises(tmp_path, name):
    recover(tmp_path / name)


def check_refused(place, reason, action):
    before = sorted(place.parent.iterdir()) if place.parent.is_dir() else None
    with pytest.raises(ZeusError) as caught:
        action()
    assert reason in str(caught.value)
    assert str(caught.value).count(". ") == 1
    if before is not None:
        assert sorted(place.parent.iterdir()) == before


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("place", PLACES)
def test_a_disk_that_fails_at_the_end(tmp_path, monkeypatch, place, number):
    write(tmp_path / place, "old")

    def fail(descriptor):  # a test double of a full or broken disk
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    check_refused(tmp_path / place, os.strerror(number), lambda: write(tmp_path / place, "new"))
    assert read(tmp_path / place) == "old"


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EACCES, errno.EBUSY])
@pytest.mark.parametrize("place", PLACES)
def test_a_rename_that_fails(tmp_path, monkeypatch, place, number):
    write(tmp_path / place, "old")

    def fail(*paths):  # a test double: layers of a container cannot be renamed, nor mount points
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "rename", fail)
    monkeypatch.setattr(os, "replace", fail)
    monkeypatch.setattr(rename, "_rename", fail)
    monkeypatch.setattr(Path, "rename", fail)
    check_refused(tmp_path / place, os.strerror(number), lambda: write(tmp_path / place, "new"))
    assert read(tmp_path / place) == "old"


@pytest.mark.parametrize("place", PLACES)
def test_files_that_may_not_grow(tmp_path, place):
    write(tmp_path / place, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        check_refused(tmp_path / place, "File too large", lambda: write(tmp_path / place, "new" * 4096))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read(tmp_path / place) == "old"


@pytest.mark.parametrize("place", PLACES)
def test_a_full_disk(tmp_path, place):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        write(disk / place, "old")
        check_refused(disk / place, "No space left", lambda: write(disk / place, "new" * 40_000))
        assert read(disk / place) == "old"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_error_of_the_block_that_is_not_about_room_stays_as_it_is(tmp_path):
    with pytest.raises(FileNotFoundError), write_atomically(tmp_path / "file.txt"):
        (tmp_path / "missing").read_text()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["x" * 300 + ".txt", "a\0b.txt", "file.txt/below.txt", "missing/below.txt", "loop.txt"]
)
def test_names_that_cannot_be_written(tmp_path, name):
    (tmp_path / "file.txt").write_text("old")
    (tmp_path / "loop.txt").symlink_to(tmp_path / "loop.txt")
    for action in (check_place, lambda place: write(place, "new")):
        check_refused(tmp_path / name, "which cannot be written", lambda action=action: action(tmp_path / name))


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "file.txt/below", "loop", "file.txt"])
def test_folders_that_cannot_be_written(tmp_path, name):
    (tmp_path / "file.txt").write_text("old")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")

    def action():
        with write_folder_atomically(tmp_path / name, overwrite=True):
            raise AssertionError("it began")

    check_refused(tmp_path / name, "which cannot be written", action)
    assert (tmp_path / "file.txt").read_text() == "old"


def test_a_name_as_long_as_can_be(tmp_path):
    place = tmp_path / ("x" * 251 + ".txt")
    write(place, "text")
    assert read(place) == "text"


@pytest.mark.parametrize("name", ["pipe", "/dev/null"])
def test_no_file_takes_the_place_of_a_device(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    place = tmp_path / name
    before = place.stat()
    with pytest.raises(ZeusError, match="device or a pipe"), write_atomically(place):
        raise AssertionError("it began")
    assert place.stat().st_mode == before.st_mode


def test_missing_folders_above_are_made_and_go_again(tmp_path):
    with pytest.raises(ValueError, match="no"), write_folder_atomically(tmp_path / "a" / "b" / "folder"):
        raise ValueError("no")
    assert os.listdir(tmp_path) == []
    write(tmp_path / "a" / "b" / "folder", "text")
    assert read(tmp_path / "a" / "b" / "folder") == "text"


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_a_link_stays_a_link(tmp_path, place, there):
    real, link = tmp_path / "elsewhere" / place, tmp_path / place
    real.parent.mkdir()
    if there:
        write(real, "old")
    link.symlink_to(real)
    write(link, "new")
    assert link.is_symlink()
    assert read(real) == read(link) == "new"
    assert sorted(os.listdir(real.parent)) == [place]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444])
def test_a_file_keeps_its_mode(tmp_path, mode):
    place = tmp_path / "file.txt"
    write(place, "old")
    place.chmod(mode)
    write(place, "new")
    assert stat.S_IMODE(place.stat().st_mode) == mode


def test_a_folder_keeps_its_modes(tmp_path, exchange):
    place = tmp_path / "folder"
    write(place, "old")
    place.chmod(0o750)
    (place / "a").chmod(0o640)
    write(place, "new")
    assert read(place) == "new"
    assert stat.S_IMODE(place.stat().st_mode) == 0o750
    assert stat.S_IMODE((place / "a").stat().st_mode) == 0o640


@pytest.mark.parametrize("place", PLACES)
def test_new_content_has_the_modes_of_the_mask(tmp_path, place):
    before = os.umask(0o027)
    try:
        write(tmp_path / place, "text")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / place).stat().st_mode) == (0o640 if "." in place else 0o750)


@pytest.mark.parametrize("place", PLACES)
def test_the_owner_stays(tmp_path, place):
    if os.geteuid():
        pytest.skip("only root can give a file away")
    write(tmp_path / place, "old")
    os.chown(tmp_path / place, 1234, 1235)
    write(tmp_path / place, "new")
    found = (tmp_path / place).stat()
    assert (found.st_uid, found.st_gid) == (1234, 1235)
