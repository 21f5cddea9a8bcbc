"""What the tests share: exported bundles, and a tiny model."""

import functools
import gc
import os
import runpy
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bundle_cache import fetch_bundle
from checkout import MODELS, ROOT
from click.testing import CliRunner

from zeus_trt import quantize
from zeus_trt.cli import main
from zeus_trt.export import export_model
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine, Session

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# The workers share the cores, and so do the processes that they start.
SHARE = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
torch.set_num_threads(int(os.environ.setdefault("OMP_NUM_THREADS", str(SHARE))))


def pytest_collection_finish():
    """Collects garbage less often, and not among the modules: tracing makes millions of objects, which live on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


@pytest.fixture(scope="session", autouse=True)
def interrupts():
    """A Ctrl-C is an exception here and in children, also where the suite runs in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory):
    """A data folder and a cache of the test run, so that the user's own get no key and no plan."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        patch.setenv("ZEUS_TRT_DATA_HOME", str(folder))
        patch.setenv("ZEUS_TRT_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("ZEUS_TRT_TRUST_ENGINES", raising=False)
        yield folder


@pytest.fixture(scope="session")
def cached_bundle(tmp_path_factory):
    """Exports by name, once for as long as no source and no version changes; gives a new copy at each call."""

    def fetch(name: str, make: Callable[[Path], object]) -> Path:
        return fetch_bundle(name, make, tmp_path_factory.mktemp(name) / "bundle")

    return fetch


@pytest.fixture(scope="session")
def digits_bundle(cached_bundle):
    """Exports a digits model by name, with the command of the documents; tests leave the bundle as it is."""

    @functools.cache
    def fetch(name: str) -> Path:
        def make(path: Path) -> None:
            done = CliRunner().invoke(main, ["export", str(MODELS / f"digits-{name}"), "-o", str(path)])
            assert done.exit_code == 0, done.output

        return cached_bundle(f"digits-{name}", make)

    return fetch


@pytest.fixture(scope="session")
def family_bundle(cached_bundle):
    """Exports a tiny pipeline of ``FAMILIES`` by name; gives a new copy at each call."""
    from pipelines import FAMILIES

    def fetch(name: str, precision: str = "fp32") -> Bundle:
        family = FAMILIES[name]

        def make(path: Path) -> None:
            settings = {"settings": family.settings, "unseen": family.unseen, "steps": (10,)}
            export_model(family.make(), path, precision=precision, **settings)

        return Bundle.open(cached_bundle(f"{name}-{precision}", make))

    return fetch


@pytest.fixture(scope="module")
def one_thread():
    """Tiny tensors: a second thread only waits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def open_session(digits_bundle):
    """Opens a digits model by name; one thread, since the test workers share the cores."""

    def open_one(name: str, scheduler=None) -> Session:
        bundle = Bundle.open(digits_bundle(name))
        return Session(bundle, engine=OnnxRuntimeEngine(bundle.graph(), num_threads=1), scheduler=scheduler)

    return open_one


@pytest.fixture(scope="session")
def flow_session(open_session):
    """A session of the digits UNet flow model."""
    return open_session("unet-flow")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Folder of an untrained class-conditional UNet, small enough to export in seconds."""
    from diffusers import FlowMatchEulerDiscreteScheduler, UNet2DModel

    folder = tmp_path_factory.mktemp("tiny") / "model with spaces"
    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8,), norm_num_groups=4, layers_per_block=1,
        num_class_embeds=4, down_block_types=("DownBlock2D",), mid_block_type=None, up_block_types=("UpBlock2D",),
    )  # fmt: skip
    unet.save_pretrained(folder / "unet")
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")
    return folder


@pytest.fixture(scope="session")
def export_tiny(cached_bundle, tiny_model):
    """Exports ``tiny_model``; gives a new copy at each call."""
    return lambda: Bundle.open(cached_bundle("tiny", lambda path: export_model(tiny_model, path)))


@pytest.fixture(scope="session")
def quantized_tiny(export_tiny):
    """``tiny_model`` with a graph in INT8 beside the float one; tests leave the bundle as it is."""
    folder = export_tiny().path
    quantize(folder, steps=4, num_trajectories=1, num_held_out=1, min_psnr=10.0, max_error=2.0)
    return Bundle.open(folder)


@pytest.fixture(scope="session")
def tiny_pipeline(tmp_path_factory):
    """Folder of the examples' tiny Stable Diffusion, with text encoder, tokenizer and decoder."""
    folder = tmp_path_factory.mktemp("pipelines") / "tiny sd"
    runpy.run_path(str(ROOT / "examples" / "tiny_pipeline.py"))["write_pipeline"](folder)
    return folder


@pytest.fixture(scope="session")
def export_tiny_pipeline(cached_bundle, tiny_pipeline):
    """Exports ``tiny_pipeline``; gives a new copy at each call."""
    return lambda: Bundle.open(cached_bundle("tiny-sd", lambda path: export_model(tiny_pipeline, path)))
