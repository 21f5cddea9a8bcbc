"""What a search of the prior found is there for the next process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler

from zeus_trt.zeus_graph import Plan, prior, prior_cache, trace


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(prior_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "prior"


@pytest.fixture
def find(monkeypatch):
    """Finds a plan as a new process does; the second argument says whether it may search."""
    program = trace(FlowMatchEulerDiscreteScheduler(shift=3.0), 16)

    def refuse(*_):
        raise AssertionError("searched again")

    def find(nfe: int = 7, search: bool = True) -> Plan:
        prior._find.cache_clear()
        with monkeypatch.context() as patch:
            if not search:
                patch.setattr(prior, "foresee", refuse)
                patch.setattr(prior, "search", refuse)
            return Plan.prior(program, nfe)

    return find


def list_files(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def test_a_plan_is_searched_once_and_read_to_the_bit(folder, find, caplog):
    with caplog.at_level("INFO"):
        searched = find()
        said = caplog.messages[-1]
        caplog.clear()
        assert find(search=False) == searched
    assert (searched.source, caplog.messages) == ("prior", [said]), "what is foreseen is said again"
    assert len(list_files(folder)) == 1
    find(8)
    assert len(list_files(folder)) == 2


def test_a_plan_that_falls_back_says_so_again(folder, find, monkeypatch, caplog):
    monkeypatch.setattr(prior, "MARGIN", 1000.0)
    assert find() == find(search=False) == Plan.spread(16, 7)
    first, second = caplog.messages
    assert first == second
    assert "is foreseen as" in first
    assert len(list_files(folder)) == 1


@pytest.mark.parametrize(
    "damage",
    [lambda text: "", lambda text: text[:-9], lambda text: text.replace('"F', '"FF', 1), lambda text: "[1]"],
)
def test_a_damaged_file_is_searched_again_and_replaced(folder, find, damage):
    searched = find()
    (path,) = folder.iterdir()
    whole = path.read_text()
    path.write_text(damage(whole))
    assert path.read_text() != whole
    assert find() == searched
    assert path.read_text() == whole


def test_what_cannot_be_kept_is_found_all_the_same(tmp_path, monkeypatch, find):
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file" / "cache"), "off", ""):
        monkeypatch.setenv(prior_cache.CACHE_VARIABLE, place)
        assert find().source == "prior"
    assert list_files(tmp_path) == ["file"]


def test_other_code_and_other_kernels_are_other_searches(monkeypatch, folder):
    program, kernels = trace(FlowMatchEulerDiscreteScheduler(), 12), prior.load_kernels()
    places = {prior_cache.find_place(program, 6, some) for some in (kernels, kernels[:3])}
    monkeypatch.setattr(prior_cache, "_digest_code", lambda: "another")
    places.add(prior_cache.find_place(program, 6, kernels))
    places.add(prior_cache.find_place(trace(FlowMatchEulerDiscreteScheduler(shift=2.0), 12), 6, kernels))
    assert len(places) == 4


def test_the_oldest_files_go(folder, find, monkeypatch):
    monkeypatch.setattr(prior_cache, "KEPT", 2)
    for age, nfe in enumerate((6, 7, 8)):
        find(nfe)
        for one in folder.iterdir():
            os.utime(one, (one.stat().st_mtime - 100 * (3 - age),) * 2)
    assert len(list_files(folder)) == 2
    find(8, search=False)
    find(7, search=False)


@pytest.mark.extra
def test_processes_that_search_at_once_leave_one_whole_file(folder, find, tmp_path):
    path = tmp_path / "program.json"
    trace(FlowMatchEulerDiscreteScheduler(shift=3.0), 16).save(path)
    code = (
        f"from zeus_trt.zeus_graph import Plan, SolverProgram\nprint(Plan.prior(SolverProgram.load({str(path)!r}), 7))"
    )
    running = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [one.communicate(timeout=120)[0].strip() for one in running]
    assert said == [str(find(search=False))] * 2
    assert [Path(name).suffix for name in list_files(folder)] == [".json"]


def test_the_folder_is_that_of_the_system(monkeypatch, tmp_path):
    monkeypatch.delenv(prior_cache.CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    for shared in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", shared)
        assert prior_cache.find_cache_folder() == tmp_path / ".cache" / "zeus-trt"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert prior_cache.find_cache_folder() == tmp_path / "shared" / "zeus-trt"
