"""Tiny random pipelines in 8 bits: what `quantize` writes runs in ONNX Runtime, and TensorRT-RTX builds it."""

import functools
import runpy
from pathlib import Path

import diffusers
import pytest
from checkout import ROOT
from click.testing import CliRunner

from zeus_trt import quantize
from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.export.build import build_engine
from zeus_trt.runtime import Bundle
from zeus_trt.runtime.engines.tensorrt_module import import_tensorrt

FLOORS = {"sdxl": 25, "sd3": 40, "flux": 40, "wan": 40}  # dB
RTX, GPUS = "tensorrt-rtx", ("sm_89", "sm_120")
SIZE = (64, 96)
SETTINGS = {"size": SIZE, "steps": 4, "num_trajectories": 2, "num_held_out": 1}
write_pipeline = runpy.run_path(str(ROOT / "examples" / "tiny_pipeline.py"))["write_pipeline"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


def predict_velocity(folder: Path) -> None:
    """Has SDXL's solver read outputs as velocities: see ``test_sdxl_with_growing_latents_fails_its_gate``."""
    scheduler = diffusers.EulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler")
    scheduler.register_to_config(prediction_type="v_prediction")
    scheduler.save_pretrained(folder / "scheduler")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Writes and exports a family's pipeline, once; gives its folder, its bundle and a file of prompts."""

    @functools.cache
    def write(family, change=None):
        folder = tmp_path_factory.mktemp(family)
        model, bundle, prompts = folder / "model", folder / "bundle", folder / "prompts.txt"
        write_pipeline(model, family)
        if change:
            change(model)
        prompts.write_text("a cat\na dog\na red car\n")
        done = CliRunner().invoke(main, ["export", str(model), "-o", str(bundle), "--size", "x".join(map(str, SIZE))])
        assert done.exit_code == 0, done.output
        return model, bundle, prompts

    return write


@pytest.mark.parametrize("precision", ["int8", "fp8"])
@pytest.mark.parametrize("family", FLOORS)
def test_a_family_in_8_bits_runs_and_builds(exported, family, precision):
    model, bundle, prompts = exported(family, predict_velocity if family == "sdxl" else None)
    own = {**SETTINGS, "min_psnr": FLOORS[family], **({"frames": 9} if family == "wan" else {})}
    report = quantize(bundle, precision=precision, model=model, prompts=prompts, **own)
    print(f"{family}: {report.describe()}")
    assert {"float", "weights", "whole"} == set(report.layers.values())
    try:
        import_tensorrt(RTX)
    except ZeusError as error:
        pytest.skip(str(error))
    for gpu in GPUS:
        record = build_engine(bundle, RTX, gpu=gpu, precision=precision)
        assert (record.spec.target.sms, record.spec.precision) == ((gpu,), precision)


def test_sdxl_with_growing_latents_fails_its_gate(exported):
    """Its weights are random, so that it predicts no noise. Its solver takes none away, and the latents grow.

    The scale of an activation is that of the last step then, 160 times that of the first, which is left with two or
    three levels. The latents of a trained model stay near 1.
    """
    model, bundle, prompts = exported("sdxl")
    before = (bundle / "manifest.json").read_bytes()
    with pytest.raises(ZeusError, match=r"relative error of 0\.9\d to the float graph at step 0"):
        quantize(bundle, model=model, prompts=prompts, **SETTINGS)
    assert (bundle / "manifest.json").read_bytes() == before
    assert [graph.precision for graph in Bundle.open(bundle).manifest.graphs] == ["fp32"]
