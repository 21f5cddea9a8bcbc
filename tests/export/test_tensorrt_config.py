"""The builder's configuration, made by Polygraphy for real.

TensorRT itself cannot be installed here: where ``tensorrt`` is asked for, the library of TensorRT-RTX is put in its
place. That is a TEST DOUBLE, with the API of TensorRT 11; no engine of TensorRT is built.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from engine_samples import SPEC

from zeus_trt.errors import ZeusError
from zeus_trt.export import build, tensorrt
from zeus_trt.export.build import choose_target
from zeus_trt.export.tensorrt import CHILD
from zeus_trt.runtime.bundle.engine_record import Target
from zeus_trt.runtime.engines.hardware import Processor
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

try:
    MODULE = import_tensorrt("tensorrt-rtx").__name__
    import polygraphy  # noqa: F401
except (ZeusError, ImportError) as error:
    pytest.skip(str(error), allow_module_level=True)

OFF = dict.fromkeys(["tf32", "weight_streaming", "refittable", "version_compatible", "hardware_compatible"], False)
PROGRAM = """
import importlib, json, runpy, sys
child = runpy.run_path(sys.argv[1])
job = json.loads(sys.argv[2])
if job["backend"] == "tensorrt":
    sys.modules["tensorrt"] = double = importlib.import_module(job["module"])
    double.__version__ = "11.4.0"
trt = child["import_builder"](job)
from polygraphy.backend.trt import create_network
builder, network = create_network(strongly_typed=True)
network.add_input("sample", trt.float32, (-1, 4))
network.mark_output(network.add_identity(network.get_input(0)).get_output(0))
config = child["create_config"](trt, job)(builder, network)
flags = [name for name, flag in trt.BuilderFlag.__members__.items() if config.get_flag(flag)]
targets = [config.get_compute_capability(i).name for i in range(config.num_compute_capabilities)]
profiles = config.num_optimization_profiles
level = config.builder_optimization_level
print(json.dumps({"flags": flags, "targets": targets, "profiles": profiles, "level": level}))
"""


def configure(backend, sms=(), level=None, **options):
    """What the configuration of a job holds, made in a fresh interpreter as the child makes it."""
    job = {
        "backend": backend,
        "module": MODULE,
        "profile": {"sample": {"min": [1, 4], "opt": [2, 4], "max": [4, 4]}},
        "sms": sms,
        "options": {**OFF, "optimization_level": level, **options},
        "timing_cache": None,
    }
    command = [sys.executable, "-c", PROGRAM, str(CHILD), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_rtx():
    found = configure("tensorrt-rtx", ["sm_89", "sm_120"], level=4, weight_streaming=True)
    assert found == {"flags": ["WEIGHT_STREAMING"], "targets": ["SM89", "SM120"], "profiles": 1, "level": 4}
    assert configure("tensorrt-rtx", ["sm_75"], tf32=True)["flags"] == ["TF32"]


def test_tensorrt_against_the_double():
    assert configure("tensorrt")["flags"] == []
    found = configure("tensorrt", level=5, **{**dict.fromkeys(OFF, True), "hardware_compatible": False})
    assert set(found["flags"]) == {"TF32", "REFIT", "VERSION_COMPATIBLE", "WEIGHT_STREAMING"}
    assert (found["profiles"], found["level"]) == (1, 5)
    configure("tensorrt", hardware_compatible=True)  # the double takes the level and does not keep it


def test_tensorrt_builds_for_the_gpu_that_is_here(monkeypatch):
    monkeypatch.setattr(build, "find_gpu", lambda: Processor("NVIDIA H100", "sm_90"))
    assert choose_target("tensorrt", None) == Target(("sm_90",), "NVIDIA H100")
    assert choose_target("tensorrt", "SM90") == Target(("sm_90",), "NVIDIA H100")
    with pytest.raises(ZeusError, match=r"gpu: got sm_86 on a machine with sm_90.*Build on the machine that has it"):
        choose_target("tensorrt", "sm_86")


@pytest.mark.parametrize("fails", [False, True])
def test_a_timing_cache_changes_only_if_the_build_succeeds(tmp_path, monkeypatch, fails):
    """With a double of the child: TensorRT-RTX has no timing cache."""
    cache, jobs = tmp_path / "timing.cache", []
    cache.write_bytes(b"old")

    def run_child(backend, job, folder, on_progress):
        jobs.append(job)
        Path(job["timing_cache"]).write_bytes(Path(job["timing_cache"]).read_bytes() + b" and new")
        if fails:
            raise ZeusError("it died")

    monkeypatch.setattr(tensorrt, "import_tensorrt", lambda backend: import_tensorrt("tensorrt-rtx"))
    monkeypatch.setattr(tensorrt, "_run_child", run_child)
    with pytest.raises(ZeusError) if fails else contextlib.nullcontext():
        tensorrt.build_tensorrt(tmp_path / "graph.onnx", SPEC, tmp_path / "denoiser.engine", cache)
    assert cache.read_bytes() == (b"old" if fails else b"old and new")
    assert list(tmp_path.iterdir()) == [cache]
    assert jobs[0]["timing_cache"] != str(cache)
