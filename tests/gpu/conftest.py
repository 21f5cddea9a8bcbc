"""Tests of a CUDA device; elsewhere they are skipped, with the reason.

ZEUS_GPU_TESTS_ON=cpu is a dry run without one: what makes sense on a CPU runs there, CUDA graphs against a TEST DOUBLE.
ZEUS_GPU_RESULTS names a folder for what is measured and for each test's outcome, written as they come.
"""

import functools
import json
import os
import runpy
from pathlib import Path

import cuda_double
import pytest
import torch

DRY = os.environ.get("ZEUS_GPU_TESTS_ON") == "cpu"
# Cheap ones first, so that a run that is cut off has its figures; what may break the device for the others late.
ORDER = (
    "test_program_cuda", "test_engines_cuda", "test_session_cuda", "test_pipelines_cuda", "test_large_denoiser",
    "test_streams_cuda", "test_aot_cuda",
)  # fmt: skip
SLOW = ("aot-", "onnxruntime")  # engines whose making takes minutes

LARGE = pytest.StashKey[list]()


def pytest_configure(config):
    config.stash[LARGE] = []
    torch.backends.cudnn.allow_tf32 = False  # results are compared with those of a CPU


def pytest_collection_modifyitems(items):
    own = [item for item in items if item.path.parent == Path(__file__).parent]
    own.sort(key=lambda item: (any(name in item.name for name in SLOW), ORDER.index(item.path.stem)))
    items[:] = [item for item in items if item not in own] + own
    for item in own:
        item.add_marker(pytest.mark.gpu)
        if not (torch.cuda.is_available() or DRY):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))


@pytest.fixture(scope="session")
def device():
    """Where the tests run: the first GPU, or the CPU in a dry run."""
    return torch.device("cpu") if DRY else torch.device("cuda", 0)


@pytest.fixture
def cuda(device):
    """The first GPU, for what no CPU can show."""
    if device.type != "cuda":
        pytest.skip("dry run: needs a CUDA device itself")
    return device


@pytest.fixture
def graphs(device, monkeypatch):
    """Where CUDA graphs run; in a dry run their double is installed."""
    if device.type == "cpu":
        cuda_double.install(monkeypatch)
    return device


@pytest.fixture(scope="session")
def keep_figures(request, bench):
    """Tells the rows of a large denoiser now, in the table at the end, and in the folder of results."""
    terminal = request.config.pluginmanager.get_plugin("terminalreporter")

    def keep(name, figures):
        if terminal:
            terminal.write_line(f"\n{bench['tabulate'](figures['rows'])[1]}")
        request.config.stash[LARGE].extend(figures["rows"])
        if folder := _find_results():
            (folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n")

    return keep


def pytest_runtest_logreport(report):
    if (folder := _find_results()) and (report.when == "call" or report.outcome != "passed"):
        line = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
        said = str(report.longrepr)[-4000:] if report.longrepr else None
        with (folder / "tests.jsonl").open("a") as file:
            file.write(json.dumps({**line, "when": report.when, "said": said}) + "\n")


def pytest_terminal_summary(terminalreporter, config):
    if rows := config.stash[LARGE]:
        terminalreporter.section("large denoisers")
        for line in _bench()["tabulate"](rows):
            terminalreporter.write_line(line)


def _find_results():
    if not (name := os.environ.get("ZEUS_GPU_RESULTS")):
        return None
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _bench():
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "large_denoiser.py"))


@pytest.fixture(scope="session")
def bench():
    """The names of benchmarks/large_denoiser.py."""
    return _bench()


@pytest.fixture(scope="session")
def unet_of(bench):
    """A model's UNet and inputs by its name; the last one is kept, so that its engines share it."""
    kept = {}

    def make(model, device):
        if model not in kept:
            kept.clear()
            kept[model] = bench["make_unet"](model, device)
        return kept[model]

    return make


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory):
    """A folder per model, where packages that several engines open are built once."""
    return functools.cache(tmp_path_factory.mktemp)
