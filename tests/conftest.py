"""What the tests share: bundles of the digits models, and toy models."""

import os
from pathlib import Path

import pytest
import torch
from checkout import MODELS
from filelock import FileLock

from zeus_trt.export import export_bundle
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine, Session

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory):
    """A data folder of the test run, so that the user's own gets no key."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("data")
        patch.setenv("ZEUS_TRT_DATA_HOME", str(folder))
        patch.delenv("ZEUS_TRT_TRUST_ENGINES", raising=False)
        yield folder


@pytest.fixture(scope="session")
def digits_bundle(tmp_path_factory):
    """Exports a digits model by name, once per test run, however many workers there are."""
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent

    def make(name: str) -> Path:
        bundle = shared / f"bundle-{name}"
        with FileLock(f"{bundle}.lock"):
            if not bundle.exists():
                export_bundle(MODELS / f"digits-{name}", bundle)
        return bundle

    return make


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
        return Session(bundle, engine=OnnxRuntimeEngine(bundle.onnx, num_threads=1), scheduler=scheduler)

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
        sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8), norm_num_groups=4,
        layers_per_block=1, num_class_embeds=4,
        down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    unet.save_pretrained(folder / "unet")
    FlowMatchEulerDiscreteScheduler().save_pretrained(folder / "scheduler")
    return folder
