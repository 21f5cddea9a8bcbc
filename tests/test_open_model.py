"""One place opens bundles, bare model folders and pipelines, with one default of guidance."""

import pytest
import torch
from tiny_subjects import write_unlabelled

from zeus_trt.calibrating import calibrate
from zeus_trt.comparing import compare, open_compared
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.evaluation.workload import SessionWorkload
from zeus_trt.export.loading import BARE, BUNDLE, NONE, PIPELINE, find_kind
from zeus_trt.open_model import open_model
from zeus_trt.sampling import run_model


@pytest.fixture(scope="module")
def bundle(export_tiny):
    return export_tiny()


def test_a_name_is_of_one_kind(bundle, tiny_model, tiny_pipeline, tmp_path):
    names = (bundle.path, tiny_model, tiny_pipeline, "some-org/some-model", tmp_path, tmp_path / "missing")
    assert [find_kind(name) for name in names] == [BUNDLE, BARE, PIPELINE, PIPELINE, NONE, NONE]


def test_every_kind_opens(bundle, tiny_model, tiny_pipeline):
    assert type(open_model(bundle.path)) is SessionWorkload
    for name, options in ((tiny_model, {}), (tiny_pipeline, {"prompts": ["a cat"]})):
        workload = open_model(name, **options)
        assert type(workload) is PipelineWorkload
        assert (workload.bundle, workload.open("auto")) == (None, "eager")
    with pytest.raises(ZeusError, match=r"bundle: got .*none without a readable manifest\.json"):
        open_model(tiny_model / "none")


def test_a_bare_model_samples_like_its_bundle(bundle, tiny_model, one_thread):
    plans = {"plan": make_plan, "num_steps": 6}
    bare = open_model(tiny_model, seed=5).sample(numbers=range(3), **plans)
    session = open_model(bundle.path, seed=5).sample(numbers=range(3), **plans)
    assert bare.report.nfe == session.report.nfe < 6
    torch.testing.assert_close(bare.images, session.images, rtol=1e-3, atol=1e-3)
    engine = open_model(tiny_model, engine=bundle.path, seed=5).sample(numbers=range(3), backend="onnxruntime", **plans)
    torch.testing.assert_close(engine.images, session.images, rtol=1e-3, atol=1e-3)


def make_plan(count):
    from zeus_trt.zeus_graph import choose_plan

    return choose_plan(ratio=2, window="none")(count)


def test_guidance_has_one_default(bundle, tiny_model, tmp_path):
    assert open_model(bundle.path).guidance_scale == 2.0
    assert open_compared(bundle.path).workload.guidance_scale == 2.0
    assert open_model(tiny_model).describe()["guidance_scale"] is None  # its pipeline's own, which is the same
    bare = write_unlabelled(tmp_path / "bare")
    assert open_model(bare).sample(make_plan, range(1), num_steps=4).report.nfe < 4
    with pytest.raises(ZeusError, match="guidance_scale: got 3 for a model without class labels"):
        open_model(bare, guidance_scale=3.0).sample(make_plan, range(1), num_steps=4)


@pytest.mark.extra
def test_a_bare_model_runs_compares_and_calibrates(tiny_model, tmp_path):
    made = run_model(tiny_model, tmp_path / "a.png", steps=4, labels=(1, 2), seed=1)
    assert (made[0].report.backend, (tmp_path / "a.png").is_file()) == ("eager", True)
    options = {"steps": (4,), "ratios": (2,), "num_images": 1, "rounds": 1, "metrics": ("psnr",)}
    rows = compare(tiny_model, output=tmp_path / "report", **options).rows
    assert {row.backend for row in rows} == {"onnxruntime"}
    assert (tmp_path / "report" / "bundle" / "manifest.json").is_file()
    samples = {"num_trajectories": 1, "num_validation": 1, "num_held_out": 1}
    found = calibrate(tiny_model, nfe=4, steps=6, output=tmp_path / "plan.json", labels=(1,), **samples)
    assert (found.backend, found.chosen.plan.nfe) == ("eager", 4)


def test_an_option_without_effect_or_of_no_command_is_refused(bundle, tiny_model, tmp_path):
    for name, options, said in (
        (bundle.path, {"prompts": ["a"]}, "prompts: got it for a bundle"),
        (bundle.path, {"engine": bundle.path}, "engine: got it for a bundle"),
        (tiny_model, {"mode": "program"}, "mode: got program for a pipeline"),
        (tiny_model, {"backend": "onnxruntime"}, "backend: got onnxruntime for a pipeline alone"),
        (tiny_model, {"prompts": ["a"]}, "prompts: got it for a BarePipeline; expected labels"),
        (tiny_model, {"size": (64, 64)}, "size: got it for a BarePipeline"),
        (tiny_model, {"labels": (9,)}, r"labels: got 9; expected 0\.\.3"),
    ):
        with pytest.raises(ZeusError, match=said):
            open_model(name, **options)
    for call in (
        lambda: run_model(bundle.path, tmp_path / "a.png", magic=1),
        lambda: compare(bundle.path, magic=1),
        lambda: calibrate(bundle.path, nfe=4, magic=1),
    ):
        with pytest.raises(TypeError, match="magic"):
            call()
