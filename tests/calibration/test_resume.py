"""A calibration that is killed goes on, and finds the plan of one that was not."""

import importlib.metadata
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from checkout import ROOT
from toy_workload import ToyWorkload

from zeus_trt.calibration.calibrate import Samples, Task
from zeus_trt.calibration.goals import Goal, reach
from zeus_trt.calibration.record import make_tag
from zeus_trt.calibration.trajectory_stats import TrajectoryStats
from zeus_trt.evaluation.workload import make_full_setting

CALIBRATE = """
import os, signal, sys
from pathlib import Path
from toy_workload import ToyWorkload
from zeus_trt.calibration.calibrate import Samples, Task
from zeus_trt.calibration.goals import Goal, reach
from zeus_trt.evaluation.workload import make_full_setting

left = int(sys.argv[2])

def count(calls):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

workload = ToyWorkload()
setting, samples = make_full_setting(workload, 12), Samples(4, 2, 2)
reach(Task(workload, setting, samples, trajectories=Path(sys.argv[1]), on_calls=count), Goal(nfe=6))
"""


def test_a_killed_calibration_goes_on_to_the_same_plan(tmp_path):
    file = tmp_path / "kept.npz"
    command = [sys.executable, "-c", CALIBRATE, str(file), "3"]
    killed = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert TrajectoryStats.load(file).numbers == (0, 1, 2)
    with np.load(file, allow_pickle=False) as kept:
        assert all(kept[name].dtype.kind in "fU" for name in kept.files)
    resumed, whole = ToyWorkload(), ToyWorkload()
    setting, samples = make_full_setting(whole, 12), Samples(4, 2, 2)
    plan = reach(Task(resumed, setting, samples, trajectories=file), Goal(nfe=6))
    assert plan.to_json() == reach(Task(whole, setting, samples), Goal(nfe=6)).to_json()
    assert resumed.calls < whole.calls


def test_what_was_recorded_before_is_not_run_again(tmp_path):
    file, workload = tmp_path / "kept.npz", ToyWorkload()
    setting = make_full_setting(workload, 8)
    Task(workload, setting, Samples(5, 1, 1), trajectories=file).record()
    spent = workload.calls
    (fewer,) = Task(workload, setting, Samples(2, 1, 1), trajectories=file).record()
    assert workload.calls == spent
    (alone,) = Task(ToyWorkload(), setting, Samples(2, 1, 1)).record()
    assert fewer.calls == alone.calls
    np.testing.assert_array_equal(fewer.products, alone.products)


@pytest.mark.parametrize("change", ["graph", "versions", "backend", "steps"])
def test_all_that_determines_a_trajectory_is_in_its_key(change, monkeypatch):
    workload = ToyWorkload()

    def tag(backend="onnxruntime", steps=8):
        return make_tag(workload, workload.program(steps), make_full_setting(workload, steps, backend=backend))

    before = tag()
    assert tag() == before
    if change == "graph":
        graph = SimpleNamespace(files={"denoiser.onnx": SimpleNamespace(sha256="1")})
        monkeypatch.setattr(workload, "bundle", SimpleNamespace(manifest=graph), raising=False)
    if change == "versions":
        monkeypatch.setattr(importlib.metadata.Distribution, "version", "0")
    assert tag(**{"backend": {"backend": "eager"}, "steps": {"steps": 9}}.get(change, {})) != before
