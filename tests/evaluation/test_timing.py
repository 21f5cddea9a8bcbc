"""The time of a pipeline's text encoders and decoder is measured, and their hooks do not stay."""

import runpy
import time

import pytest
import torch
from checkout import ROOT
from diffusers import DiffusionPipeline
from toy_subject import ToyEngine, make_subject

from zeus_trt.evaluation.compare import compare
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.pipeline_workload import PipelineWorkload
from zeus_trt.evaluation.subject import open_subject
from zeus_trt.evaluation.timing import time_run
from zeus_trt.evaluation.variants import Grid, make_variants
from zeus_trt.evaluation.workload import Sample
from zeus_trt.runtime import Report

REPORT = Report("toy", "step", "toy", "FF", "zeus", 2, 0.0, 0.0, 1.0)


class Slow(torch.nn.Module):
    """Takes so many milliseconds of a clock that is no real one, then calls its inner module."""

    def __init__(self, clock, milliseconds, inner=None):
        super().__init__()
        self.clock, self.milliseconds, self.inner = clock, milliseconds, inner

    def forward(self):
        self.clock[0] += self.milliseconds / 1000
        if self.inner is not None:
            self.inner()
        if self.milliseconds < 0:
            raise RuntimeError("broken")


class ScriptedWorkload:
    """A double: its run calls what it is given."""

    def __init__(self, parts, run):
        self.parts, self._run = parts, run

    def run(self, setting, numbers):
        self._run()
        return Sample(torch.zeros(1, 1), torch.zeros(1, 1, 2, 2), REPORT)


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def has_hooks(module):
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


class Setting:
    backend = "eager"


def test_outermost_calls_count_once_wherever_they_begin(clock):
    encoder = Slow(clock, 30, Slow(clock, 10))
    decoder = Slow(clock, 99, Slow(clock, 7))

    def run():
        encoder()
        clock[0] += 0.5  # the loop
        decoder.inner()  # as `decode` does, past the decoder's own forward
        decoder.inner()

    workload = ScriptedWorkload({"text_encoder": encoder, "vae": decoder, "safety": Slow(clock, 1)}, run)
    timed, _ = time_run(workload, Setting, (0,))
    assert timed.parts_ms == pytest.approx({"text_encoder": 40, "vae": 14})
    assert timed.total_ms == pytest.approx(554)
    assert not has_hooks(encoder)
    assert not has_hooks(decoder)


def test_hooks_go_when_a_part_fails(clock):
    part = Slow(clock, -1)
    with pytest.raises(RuntimeError, match="broken"):
        time_run(ScriptedWorkload({"vae": part}, part), Setting, (0,))
    assert not has_hooks(part)


@pytest.mark.usefixtures("one_thread")
def test_a_pipeline_has_a_column_for_every_part_and_a_bound_of_the_whole_run(tmp_path):
    runpy.run_path(str(ROOT / "examples" / "tiny_pipeline.py"))["write_pipeline"](tmp_path / "sd", "sd")
    pipeline = DiffusionPipeline.from_pretrained(tmp_path / "sd")
    pipeline.set_progress_bar_config(disable=True)
    workload = PipelineWorkload(pipeline, ["a cat"], {"height": 64, "width": 64})
    assert set(workload.parts) >= {"text_encoder", "vae"}
    assert "unet" not in workload.parts
    subject = open_subject(workload)
    variants = make_variants(workload, Grid(subject.asked, ratios=(2,), steps=(6,)))
    result = compare(subject, variants, MeasureOptions(num_images=1, rounds=1, trajectories=False))
    names = [column.name for column in result.table.columns]
    assert {"text encoder", "decoder (vae)", "run bound"} <= set(names)
    for row in result.rows:
        assert set(row.times.parts_ms) == {"text_encoder", "vae"}
        assert all(part > 0 for part in row.times.parts_ms.values())
        assert row.times.engine_ms + row.times.loop_ms + sum(row.times.parts_ms.values()) <= row.times.total_ms
        assert 1 <= row.run_bound <= row.speedup_bound
    assert not any(has_hooks(part) for part in workload.parts.values())


def test_a_bundle_has_no_such_columns(digits_bundle):
    subject = make_subject(digits_bundle("unet-flow"))
    variants = make_variants(subject.workload, Grid(ratios=(2,), steps=(6,)))
    result = compare(subject, variants, MeasureOptions(num_images=1, rounds=1))
    assert all(row.times.parts_ms == {} for row in result.rows)
    assert not {"run bound", "decoder (vae)"} & {column.name for column in result.table.columns}


def test_short_rounds_time_some_images_and_make_all(digits_bundle, clock):
    sizes = []
    engine = ToyEngine()

    class Counting(ToyEngine):
        def __call__(self, sample, timestep, class_labels):
            sizes.append(len(sample))
            clock[0] += 0.1
            return engine(sample, timestep, class_labels)

    subject = make_subject(digits_bundle("unet-flow"), onnxruntime=Counting())
    variants = make_variants(subject.workload, Grid(ratios=(2,), steps=(6,)))
    nfe = variants[1].setting.plan.nfe
    options = MeasureOptions(num_images=4, timed_images=1, rounds=3, reference=False, trajectories=False)
    result = compare(subject, variants, options)
    assert sizes == [4] * (6 + nfe) + [1] * (2 + 3 * (6 + nfe))  # samples; the warm-up and three rounds
    full, skipped = result.rows
    assert len(skipped.image_psnr_db) == 4
    assert full.times.ms_per_image == pytest.approx(600)
    assert (skipped.speedup.median, skipped.speedup.num_rounds) == (pytest.approx(6 / nfe), 3)
