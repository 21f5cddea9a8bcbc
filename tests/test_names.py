"""`import zeus_trt`: the names that matter, and nothing heavy before one of them is asked for."""

import json
import subprocess
import sys

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from tiny_images import build_dit
from tiny_subjects import CALIBRATED, write_calibrated

import zeus_trt
from zeus_trt.evaluation.variants import NamedPlan
from zeus_trt.runtime import run_steps
from zeus_trt.zeus_graph import Plan, Predictor, fold, trace

NAMES = [
    "Bundle", "Guidance", "Plan", "Session", "Start", "ZeusError", "accelerate", "add_adapter", "calibrate", "compare",
    "export", "export_model", "import_model", "load_plan", "measure_sensitivity", "quantize",
]  # fmt: skip


def test_names_are_loaded_when_asked_for():
    code = "import sys, zeus_trt\nassert not {'torch', 'numpy', 'click', 'diffusers'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(zeus_trt.__all__) == NAMES
    assert set(NAMES) <= set(dir(zeus_trt))
    for name in NAMES:
        assert callable(getattr(zeus_trt, name))
    assert zeus_trt.Plan is Plan
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        _ = zeus_trt.magic


@pytest.fixture
def file(tmp_path):
    write_calibrated(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def test_a_plan_is_loaded_from_letters_files_and_presets(file, tmp_path):
    plan = zeus_trt.load_plan(file)
    assert (str(plan), plan.predictor.name) == (CALIBRATED, "table")
    assert zeus_trt.load_plan(str(file), 8) == plan
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert zeus_trt.load_plan("ffxrf") == Plan("FFXRF")
    assert zeus_trt.load_plan("fast", 50) == Plan.uniform(50, 3)
    (tmp_path / "own.json").write_text('{"format": 1, "steps": "FFXF"}')
    assert zeus_trt.load_plan(tmp_path / "own.json") == Plan("FFXF")
    for wrong in (("fast",), (file, 9), ("none.json",), ("XX",)):
        with pytest.raises(zeus_trt.ZeusError):
            zeus_trt.load_plan(*wrong)


def denoiser(sample, timestep):
    return torch.tanh(sample) * (timestep / 1000)[:, None, None, None]


def last(plan, predictor=None):
    noise = torch.ones(1, 1, 4, 4)
    steps = run_steps(denoiser, FlowMatchEulerDiscreteScheduler(), noise, plan.with_predictor(predictor), 8)
    return list(steps)[-1].latents


def test_a_calibrated_plan_brings_its_predictor(file):
    plan = zeus_trt.load_plan(file)
    letters = Plan(CALIBRATED)
    assert plan != letters
    solver = trace(FlowMatchEulerDiscreteScheduler(), 8)
    assert fold(solver, plan).to_json() == fold(solver, letters.with_predictor(plan.predictor)).to_json()
    assert torch.equal(last(plan), last(letters, plan.predictor))
    assert torch.equal(last(plan, plan.predictor), last(plan))
    assert not torch.equal(last(plan), last(letters))
    for run in (lambda: last(plan, "reuse"), lambda: fold(solver, plan.with_predictor("zeus"))):
        with pytest.raises(zeus_trt.ZeusError, match="beside a calibrated plan"):
            run()
    assert NamedPlan.read(plan) == NamedPlan(CALIBRATED, plan)
    assert NamedPlan.read(letters).plan.predictor is None


def test_sessions_and_pipelines_take_it(file, flow_session):
    plan = zeus_trt.load_plan(file)
    labels = {"class_labels": torch.tensor([3])}
    made = flow_session.generate(labels, plan=plan, num_steps=8)
    own = flow_session.generate(labels, plan=Plan(CALIBRATED), num_steps=8, predictor=plan.predictor)
    assert torch.equal(made.latents, own.latents)
    assert (made.report.predictor, made.report.mode) == ("table", "program")
    assert str(Predictor()) == flow_session.generate(labels, plan=Plan("FFF"), num_steps=3).report.predictor
    with pytest.raises(zeus_trt.ZeusError, match="beside a calibrated plan"):
        flow_session.generate(labels, plan=plan, num_steps=8, predictor="zeus")


def test_a_pipeline_takes_it(file):
    plan = zeus_trt.load_plan(file)

    def run(**options):
        with zeus_trt.accelerate(pipeline, **options) as fast:
            asked = {"num_inference_steps": 8, "generator": torch.Generator().manual_seed(0), "output_type": "np"}
            return torch.from_numpy(fast(class_labels=[1], **asked).images), fast.report

    pipeline = build_dit()
    pipeline.transformer.eval()  # in training it drops labels at random
    pipeline.set_progress_bar_config(disable=True)
    images, report = run(plan=plan)
    assert (report.plan, report.predictor) == (CALIBRATED, "table")
    assert torch.equal(images, run(plan=Plan(CALIBRATED), predictor=plan.predictor)[0])
    assert torch.equal(images, run(plan=lambda total: plan)[0])
    assert not torch.equal(images, run(plan=Plan(CALIBRATED))[0])
    for wrong in ({"plan": plan, "predictor": "reuse"}, {"plan": plan, "ratio": 3}):
        with pytest.raises(zeus_trt.ZeusError, match="beside a"):
            run(**wrong)
    with pytest.raises(zeus_trt.ZeusError, match="expected one of zeus"):
        zeus_trt.accelerate(pipeline, predictor="magic")
