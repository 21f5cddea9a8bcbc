"""A ControlNet as a second engine of the bundle: all that it answers is one output of its graph."""

import functools
import shutil
from collections import Counter
from functools import partial

import diffusers
import pytest
import torch
from test_residuals import BASE, VARIED, build, count_calls, run_of
from tiny_inputs import rand
from tiny_unets import run_sd

from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model
from zeus_trt.export.capture import capture
from zeus_trt.export.runs import Network, Settings
from zeus_trt.export.verification import verify_bundle
from zeus_trt.runtime import OnnxRuntimeEngine, accelerate

UNSEEN = {"height": 96, "width": 128}
SETTING = {"batch": 1, "height": 96, "width": 64, "prompt": 7}


def settings_of(family, **given):
    run = run_of(family)
    return Settings(BASE, VARIED, {"seed": 1}, lambda pipeline, **setting: run(pipeline, **given, **setting))


def export(pipeline, output, settings, **options):
    return export_model(pipeline, output, settings=settings, steps=(), unseen=[UNSEEN], **options)


def worst(bundle):
    return max(record.relative_error for record in bundle.manifest.graphs[0].verification)


def off(one, other):
    return float((one - other).norm() / other.norm())


@pytest.fixture(scope="module")
def sd(tmp_path_factory):
    """A pipeline with a ControlNet, and its bundle."""
    pipeline = build("sd")
    return pipeline, export(pipeline, tmp_path_factory.mktemp("sd") / "bundle", settings_of("sd"))


def test_a_named_network_is_captured_with_all_of_its_answer_and_its_scale():
    pipeline, settings = build("sd"), Settings(BASE, {}, run=run_of("sd"))
    captured = capture(pipeline, settings, "controlnet")
    specs = {spec.name: spec for spec in captured.inputs}
    assert [spec.name for spec in captured.inputs[:2]] == ["sample", "timestep"]
    assert specs["conditioning_scale"].axes == ()
    assert captured.layout.nesting == [[0, 1, 2, 3], 4]
    assert [spec.axes[1:] for spec in captured.layout.tensors][-1] == (16, 4, 6)
    assert "makes inputs of a denoiser" in captured.border.unsteppable
    fixed = capture(pipeline, settings, "controlnet", network=Network(takes_numbers=False))
    assert fixed.constants["conditioning_scale"] == 1.0


@pytest.fixture
def asked(monkeypatch):
    """Calls of each engine of ONNX Runtime, by the engine."""
    calls, compute = Counter(), OnnxRuntimeEngine._compute
    monkeypatch.setattr(OnnxRuntimeEngine, "_compute", lambda self, cast: calls.update([self]) or compute(self, cast))
    return calls


def check_twin(pipeline, bundle, run, asked):
    """Both engines answer as torch does, at full steps only."""
    expected, calls = run(pipeline, **SETTING), []
    with accelerate(pipeline, ratio=0, engine=bundle) as twin, count_calls(pipeline.controlnet, calls):
        assert off(run(twin, **SETTING), expected) < 1e-3
        compared = len(calls)
        run(twin, **SETTING)
    assert 0 < compared == len(calls)  # in the first run, not in the second
    with accelerate(pipeline, ratio=2) as eager:
        expected = run(eager, **SETTING)
    asked.clear()
    with accelerate(pipeline, ratio=2, engine=bundle, check=False) as fast:
        assert off(run(fast, **SETTING), expected) < 1e-3
    assert [*asked.values()] == [fast.report.nfe] * 2
    assert fast.report.nfe < 8


@pytest.mark.slow
def test_the_twin_calls_both_engines_at_full_steps_only(sd, asked):
    pipeline, bundle = sd
    assert bundle.manifest.networks == ("controlnet",)
    assert max(worst(bundle), worst(bundle.open_network("controlnet"))) < 1e-5
    check_twin(pipeline, bundle, run_of("sd", steps=8), asked)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sdxl", "sd3", "flux"])
def test_each_family_has_two_engines(family, tmp_path, asked):
    pipeline = build(family)
    bundle = export(pipeline, tmp_path / "bundle", settings_of(family))
    assert max(worst(bundle), worst(bundle.open_network("controlnet"))) < 1e-4
    check_twin(pipeline, bundle, run_of(family, steps=8), asked)


@pytest.mark.slow
def test_the_scale_is_an_input_and_may_be_zero_at_first_and_at_last(sd):
    pipeline, bundle = sd
    given = {"controlnet_conditioning_scale": 0.3, "control_guidance_start": 0.2, "control_guidance_end": 0.7}
    run = settings_of("sd", **given).run
    expected, plain = run(pipeline, **SETTING), run_of("sd")(pipeline, **SETTING)
    with accelerate(pipeline, ratio=0, engine=bundle) as twin:
        assert off(run(twin, **SETTING), expected) < 1e-3
    assert off(plain, expected) > 1e-2  # the scale matters


@pytest.mark.slow
def test_another_network_or_kind_of_control_is_refused(sd):
    pipeline, bundle = sd
    with accelerate(pipeline, ratio=0, engine=bundle) as twin:
        with pytest.raises(ZeusError, match=r"guess_mode: got True .* expected False"):
            settings_of("sd", guess_mode=True).run(twin, **SETTING)
        with torch.no_grad():
            weight = pipeline.controlnet.conv_in.weight
            weight *= 1.001
            try:
                with pytest.raises(ZeusError, match="a controlnet whose weights have the digest"):
                    run_of("sd")(twin, **SETTING)
            finally:
                weight /= 1.001


@pytest.mark.slow
def test_a_network_whose_folder_is_gone_is_named(sd, tmp_path):
    folder = shutil.copytree(sd[1].path, tmp_path / "bundle")
    shutil.rmtree(folder / "networks")
    with (
        pytest.raises(ZeusError, match=r"without networks/controlnet/manifest\.json"),
        accelerate(sd[0], engine=folder),
    ):
        pass


@pytest.mark.slow
def test_a_bundle_of_a_network_is_verified_again(sd):
    pipeline, bundle = sd
    records = verify_bundle(bundle.open_network("controlnet"), pipeline, settings=settings_of("sd"))
    assert max(record.relative_error for record in records) < 1e-5


class Branching(diffusers.ControlNetModel):
    """A ControlNet that branches on its data, which no graph can."""

    @functools.wraps(diffusers.ControlNetModel.forward)
    def forward(self, sample, *args, **kwargs):
        return super().forward(sample if float(sample.mean()) < 100 else -sample, *args, **kwargs)


@pytest.mark.slow
def test_a_network_that_does_not_export_is_left_to_torch_with_a_warning(tmp_path, caplog):
    pipeline = build("sd")
    pipeline.controlnet.__class__ = Branching
    bundle = export_model(pipeline, tmp_path / "bundle", settings=Settings(BASE, {}, run=run_of("sd")), steps=())
    assert bundle.manifest.networks == ()
    assert not (bundle.path / "networks" / "controlnet").exists()
    assert "controlnet: runs in torch at full steps, since it does not export" in caplog.text
    with pytest.raises(ZeusError, match="Branching, which torch cannot trace"):
        export_model(
            pipeline, tmp_path / "alone", settings=Settings(BASE, {}, run=run_of("sd")), steps=(),
            component="controlnet",
        )  # fmt: skip


@pytest.mark.slow
def test_two_control_nets_are_one_engine_with_two_scales(tmp_path, asked):
    pipeline = build("sd")
    nets = [pipeline.controlnet, build("sd").controlnet]
    double = diffusers.StableDiffusionControlNetPipeline(
        **{**pipeline.components, "controlnet": nets}, requires_safety_checker=False
    )
    double.set_progress_bar_config(disable=True)

    def run(pipe, *, batch, height, width, scales=(0.5, 1.0), steps=3, seed=0, **setting):
        images = [rand(seed + place, batch, 3, height, width).sigmoid() for place in (4, 5)]
        torch.manual_seed(0)
        return run_sd(
            lambda **given: pipe(**{**given, "num_inference_steps": steps}), seed=seed, batch=batch, height=height,
            width=width, image=images, controlnet_conditioning_scale=[*scales], **setting,
        )[0]  # fmt: skip

    bundle = export(double, tmp_path / "bundle", Settings(BASE, VARIED, {"seed": 1}, run))
    inputs = {spec.name for spec in bundle.open_network("controlnet").manifest.inputs}
    assert {"controlnet_cond.0", "controlnet_cond.1", "conditioning_scale.0", "conditioning_scale.1"} <= inputs
    check_twin(double, bundle, partial(run, scales=(0.2, 0.7), steps=8), asked)
