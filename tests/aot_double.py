"""A TEST DOUBLE of torch's loader of AOTInductor packages, and bundles of engines for it, which hold no engine."""

import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from engine_samples import SPEC, write_engine
from toy_bundle import make_manifest

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.bundle.engine_folder import AOT_INDUCTOR
from zeus_trt.runtime.bundle.engine_profile import ShapeRange
from zeus_trt.runtime.bundle.engine_record import FILE_NAME, Target
from zeus_trt.runtime.bundle.manifest import FileEntry, graph_name
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec
from zeus_trt.runtime.engines.choose import choose_engine
from zeus_trt.runtime.engines.hardware import find_cpu

HERE = replace(
    SPEC, backend=AOT_INDUCTOR, backend_version=torch.__version__, precision=Precision.FP32,
    target=Target((find_cpu().sm,)),
    profile={"sample": ShapeRange((1, 2), (1, 2), (4, 2)), "timestep": ShapeRange((1,), (1,), (4,))}, options={},
)  # fmt: skip
MANIFEST = replace(
    make_manifest(latents=TensorSpec("sample", "float32", ("batch", 2), "latents")), symbols=(),
    weights_sha256=HERE.weights_sha256, files={graph_name("fp32"): FileEntry(1, HERE.graph_sha256)},
)  # fmt: skip


@pytest.fixture
def home(tmp_path_factory, monkeypatch):
    """A data folder without a key."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("ZEUS_TRT_DATA_HOME", str(folder))
    return folder


@pytest.fixture
def loaded(monkeypatch):
    """A TEST DOUBLE of torch's loader: the bytes that would have become native code, and where they were."""
    seen = []

    def load(path, **options):
        with open(path, "rb") as file:
            seen.append((file.read(), path, stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode)))
        return lambda *tensors: tensors[0].clone()

    monkeypatch.setattr(torch._inductor, "aoti_load_package", load)
    return seen


@pytest.fixture
def engines(tmp_path):
    """A bundle of nothing but engines."""
    return Bundle(tmp_path, MANIFEST)


def write(bundle, spec=HERE, **options):
    return write_engine(bundle.path, spec, **options)


def refuse(bundle, reason, **options):
    with pytest.raises(ZeusError, match=reason):
        choose_engine(bundle, AOT_INDUCTOR, "cpu", **options)


def edit(engine, **changes):
    """Changes fields of the record beside an engine file."""
    record = json.loads((engine.parent / FILE_NAME).read_text())
    (engine.parent / FILE_NAME).write_text(json.dumps(record | changes))
