"""Comparisons: what is counted, timed, marked, kept, and what goes on when a cell fails."""

import csv
import json
import time
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from toy_subject import ToyEngine, make_subject

from zeus_trt.comparing import open_compared
from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.compare import compare
from zeus_trt.evaluation.memory import peak_memory_mib, reset_peak_memory
from zeus_trt.evaluation.options import MeasureOptions
from zeus_trt.evaluation.peer import Peer
from zeus_trt.evaluation.report import FILES
from zeus_trt.evaluation.row import Times
from zeus_trt.evaluation.subject import open_subject
from zeus_trt.evaluation.summary import mark, mark_slower
from zeus_trt.evaluation.timing import Run
from zeus_trt.evaluation.variants import Grid, NamedPlan, make_variants
from zeus_trt.zeus_graph import Plan, Predictor


@pytest.fixture(scope="module")
def bundle(digits_bundle):
    return digits_bundle("unet-flow")


def run(subject, output=None, rounds=2, on_run=None, trajectories=True, **grid):
    grid = {"ratios": (2, 4), "steps": (10,), "backends": subject.asked, **grid}
    options = MeasureOptions(num_images=3, rounds=rounds, trajectories=trajectories)
    variants = make_variants(subject.workload, Grid(**grid))
    return compare(subject, variants, options, output=output, on_run=on_run)


@pytest.fixture(scope="module")
def written(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison") / "new"
    return run(make_subject(bundle), folder), folder


def test_rows_say_what_the_plans_say(written):
    rows = written[0].rows
    assert [row.ratio for row in rows] == [0, 2, 4]
    assert [row.nfe for row in rows] == [row.plan.count("F") for row in rows] == [10, 6, 5]
    assert [row.speedup_bound for row in rows] == [1.0, 10 / 6, 2.0]
    assert [row.mode for row in rows] == ["step", "program", "program"]
    assert (rows[0].to_full.psnr_db, rows[0].to_full.latent_error, rows[0].speedup.median) == (None, 0.0, 1.0)
    assert all(0 < row.to_full.latent_error < 1 and row.to_full.ssim < 1 for row in rows[1:])
    for row in rows:
        speedup = row.speedup
        assert speedup.min <= speedup.low <= speedup.median <= speedup.high <= speedup.max


def test_the_error_along_the_trajectory_begins_with_the_first_skipped_step(written):
    for row in written[0].rows:
        first = row.plan.find("X") if "X" in row.plan else len(row.plan)
        assert len(row.trajectory_errors) == 10
        assert [error > 0 for error in row.trajectory_errors] == [step >= first for step in range(10)]


def test_quality_is_the_same_in_every_run(written, bundle):
    again = run(make_subject(bundle))
    assert [row.to_full for row in again.rows] == [row.to_full for row in written[0].rows]


def test_all_files_are_written(written):
    result, folder = written
    assert sorted(path.name for path in folder.iterdir()) == sorted(["cells", *FILES])
    data = json.loads((folder / "comparison.json").read_text())
    assert data == json.loads(json.dumps(result.to_json()))
    table = list(csv.DictReader((folder / "table.csv").open()))
    assert [(row["label"], int(row["nfe"])) for row in table] == [("full", 10), ("r = 2", 6), ("r = 4", 5)]
    assert Image.open(folder / "grid.png").height > 3 * 64
    assert all(Image.open(folder / name).width > 600 for name in ("speedup.png", "plans.png", "trajectory.png"))


def make_run(total=100.0, **changes):
    return replace(Run(total, 90.0, 5.0, 1.0, None, 6, 6, 0, "onnxruntime", "program", "F"), **changes)


@pytest.mark.parametrize(
    ("runs", "full_ms", "expected"),
    [
        ([make_run(), make_run(105.0)], 160.0, ""),
        ([make_run(), make_run()], 200.0, "!"),
        ([make_run(), make_run(109.0)], 175.0, "="),  # 1.61 and 1.75 of at most 1.67
        ([make_run(), make_run(120.0)], 150.0, "~"),
        ([make_run(nfe=7, engine_calls=7)], 150.0, "#"),
        ([make_run(engine_calls=5)], 150.0, "#"),
        ([make_run(engine_calls=12)], 150.0, ""),  # a call per branch of guidance
        ([make_run(backend="eager")], 150.0, "?"),
        ([make_run(eager_calls=1)], 150.0, "?"),
    ],
)
def test_doubtful_rows_are_marked(bundle, runs, full_ms, expected):
    from zeus_trt.evaluation.summary import compare_times

    variant = make_variants(make_subject(bundle).workload, Grid(ratios=(2,), steps=(10,)))[1]
    runs = [replace(run, round=str(number)) for number, run in enumerate(runs)]
    totals = [run.total_ms for run in runs]
    times = Times(min(totals), min(totals), max(totals), 90.0, 5.0, 1.0)
    assert (
        mark(variant, runs, times, compare_times(runs, [make_run(full_ms, round=run.round) for run in runs]))
        == expected
    )


def test_time_is_that_of_the_clock(bundle, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def take_half_a_second():
        now[0] += 0.5

    rows = run(make_subject(bundle, onnxruntime=ToyEngine(before=take_half_a_second))).rows
    assert [row.times.engine_ms for row in rows] == [5000.0, 3000.0, 2500.0]
    assert [row.times.total_ms for row in rows] == [5000.0, 3000.0, 2500.0]
    assert [row.speedup.median for row in rows] == [1.0, 10 / 6, 2.0]
    assert [row.marks for row in rows] == ["", "", ""]


@pytest.mark.parametrize(("seconds", "mark"), [(0.75, "<"), (0.5, ""), (0.25, "")])
def test_graphs_and_mixed_plans_are_rows(quantized_tiny, monkeypatch, seconds, mark):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def take(seconds):
        now[0] += seconds

    engines = {
        name: ToyEngine(name, partial(take, each))
        for name, each in (("onnxruntime", 0.5), ("onnxruntime:int8", seconds))
    }
    rows = run(make_subject(quantized_tiny.path, **engines), ratios=(2,), plans=[NamedPlan.read("FFQXRQXRFF")]).rows
    assert [(row.backend, row.label) for row in rows] == [
        (name, label) for name in engines for label in ("full", "r = 2", "FFQXRQXRFF")
    ]
    assert [row.marks for row in rows] == [""] * 3 + [mark] * 3
    mixed = rows[2]
    assert (mixed.plan, mixed.nfe, mixed.mode) == ("FFQXRQXRFF", 6, "program")
    # The quantized engine is the bundle's, for which the clock does not move: the bound is in time, not in calls.
    assert mixed.speedup_bound == mixed.speedup.median == 10 / 4
    assert mixed.to_full.latent_error > 0


@pytest.mark.parametrize(("totals", "mark"), [((110, 110), "<"), ((110, 95), ""), ((90, 90), "")])
def test_a_quantized_engine_is_marked_where_every_round_is_slower(totals, mark):
    runs = [make_run(total, round=str(place)) for place, total in enumerate(totals)]
    unquantized = SimpleNamespace(runs=[make_run(100.0, round=run.round) for run in runs])
    assert mark_slower(runs, unquantized) == mark
    assert mark_slower(runs, None) == ""


class UNet2DModel(torch.nn.Module):
    def forward(self, sample, timestep, class_labels):
        return torch.tanh(sample)


@pytest.mark.parametrize("engine", [UNet2DModel(), ToyEngine("eager")], ids=["calls eager", "says eager"])
def test_a_silent_fallback_is_caught(bundle, engine):
    if isinstance(engine, UNet2DModel):
        inner = ToyEngine("aot-inductor")
        inner.before = lambda: engine(torch.zeros(1), None, None)
    else:
        inner = engine
    result = run(make_subject(bundle, denoiser_class="UNet2DModel", aot_inductor=inner, onnxruntime=ToyEngine()))
    assert {row.backend: "?" in row.marks for row in result.rows} == {"aot-inductor": True, "onnxruntime": False}
    assert "a silent fallback" in result.to_table()


def test_a_cell_without_memory_says_so_and_the_others_go_on(bundle, tmp_path):
    def fail():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    result = run(make_subject(bundle, tensorrt=ToyEngine("tensorrt", fail), onnxruntime=ToyEngine()), tmp_path)
    failed = [row for row in result.rows if row.backend == "tensorrt"]
    assert [row.note for row in failed] == ["out of memory: CUDA out of memory. Tried to allocate 20 GiB"] * 3
    assert all(row.nfe is None for row in failed)
    assert [row.nfe for row in result.rows if row.backend == "onnxruntime"] == [10, 6, 5]
    assert "out of memory" in result.to_table()
    assert "out of memory" in (tmp_path / "report.html").read_text()


def test_where_no_cell_runs_the_fault_is_shown(bundle):
    def fail():
        raise ZeusError("engine: broken")

    with pytest.raises(ZeusError, match="broken"):
        run(make_subject(bundle, onnxruntime=ToyEngine(before=fail)))


def test_an_interrupted_comparison_goes_on(bundle, tmp_path):
    done = []

    def stop(nfe):
        done.append(nfe)
        if len(done) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make_subject(bundle), tmp_path, on_run=stop, trajectories=False)
    engine = ToyEngine()
    resumed = run(make_subject(bundle, onnxruntime=engine), tmp_path, trajectories=False)
    assert engine.calls == 2 + 5 + 6 + 10  # the warm-up, then the second round, whose full run had not been reached
    assert [row.nfe for row in resumed.rows] == [10, 6, 5]
    assert {row.speedup.num_rounds for row in resumed.rows} == {2}
    engine.calls = 0
    assert run(make_subject(bundle, onnxruntime=engine), tmp_path, trajectories=False).to_json() == resumed.to_json()
    assert engine.calls == 0
    run(make_subject(bundle, seed=1, onnxruntime=engine), tmp_path, trajectories=False)
    assert engine.calls == 2 + 2 * (10 + 6 + 5)


def test_an_output_that_cannot_be_made_is_refused_before_the_work(bundle, tmp_path):
    (tmp_path / "file").touch()
    engine = ToyEngine(before=pytest.fail)
    with pytest.raises(ZeusError, match="cannot be made"):
        run(make_subject(bundle, onnxruntime=engine), tmp_path / "file" / "folder")


def test_the_grid_has_each_cell_once_and_each_group_its_full_run(bundle):
    workload = make_subject(bundle).workload
    grid = Grid(ratios=(2,), predictors=("zeus", "reuse"), steps=(10, 8), solvers=("default", "dpmpp-2m"))
    variants = make_variants(workload, grid)
    assert [variant.group for variant in variants if variant.is_full] == [
        ("onnxruntime", solver, steps) for solver in ("default", "dpmpp-2m") for steps in (10, 8)
    ]
    assert len({variant.key for variant in variants}) == len(variants) == 4 * 3


def test_plans_are_read_and_run_where_they_fit(bundle, tmp_path):
    workload = make_subject(bundle).workload
    file = tmp_path / "fast.json"
    file.write_text(json.dumps(Plan("FFXRFF").to_json()))
    plans = [NamedPlan.read(str(file)), NamedPlan.read("FFXF")]
    variants = make_variants(workload, Grid(ratios=(), plans=plans, steps=(6, 4, 5)))
    assert [(variant.label, str(variant.setting.plan)) for variant in variants if not variant.is_full] == [
        ("fast", "FFXRFF"), ("FFXF", "FFXF"),
    ]  # fmt: skip
    with pytest.raises(ZeusError, match="got 4 steps; expected 6"):
        make_variants(workload, Grid(plans=plans[1:], steps=(6,)))
    file.write_text("no json")
    with pytest.raises(ZeusError, match="no strict JSON"):
        NamedPlan.read(str(file))


def test_a_window_applies_to_ratios_and_presets(bundle):
    workload = make_subject(bundle).workload
    plans = [NamedPlan.read("fast", "none"), NamedPlan.read("FFXRFFFFFF")]
    variants = make_variants(workload, Grid(ratios=(2,), window="none", plans=plans, steps=(10, 20)))
    found = [(variant.label, variant.setting.plan) for variant in variants if not variant.is_full]
    none = (0.0, 0.0)
    assert found == [
        ("r = 2", with_rule(Plan.uniform(10, 2, none))), ("fast", with_rule(Plan.uniform(10, 3, none))),
        ("FFXRFFFFFF", with_rule(Plan("FFXRFFFFFF"))),
        ("r = 2", with_rule(Plan.uniform(20, 2, none))), ("fast", with_rule(Plan.uniform(20, 3, none))),
    ]  # fmt: skip
    with pytest.raises(ZeusError, match="window: got 'wide'"):
        Grid(window="wide")


def with_rule(plan):
    return replace(plan, predictor=Predictor())


def test_fewer_steps_are_measured_against_the_most_too(bundle):
    rows = run(make_subject(bundle), steps=(10, 5), ratios=(2,)).rows
    errors = {(row.num_steps, row.label): row.to_longest.latent_error for row in rows}
    assert errors[10, "full"] == 0
    assert errors[5, "full"] > 0
    assert next(row for row in rows if row.num_steps == 5).to_full.latent_error == 0


def test_eager_is_the_reference_of_a_bundle(bundle):
    from checkout import MODELS

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    subject = open_compared(bundle, model=MODELS / "digits-unet-flow", backends=("onnxruntime", "tensorrt"), seed=7)
    result = run(subject, steps=(6,), ratios=(2,), rounds=1)
    torch.set_num_threads(threads)
    full, skipped, *missing = result.rows
    assert full.to_full.latent_error == 0 < full.to_eager.latent_error < 1e-4
    assert skipped.to_eager.psnr_db == pytest.approx(skipped.to_full.psnr_db, abs=0.1)
    assert full.marks.replace("~", "") == ""
    assert all(row.note.startswith("not available: ") for row in missing)
    with pytest.raises(ZeusError, match="got eager for a bundle alone"):
        open_compared(bundle, backends=("eager",))
    with pytest.raises(ZeusError, match="other weights"):
        open_compared(bundle, model=MODELS / "digits-unet-v")
    with pytest.raises(ZeusError, match="expected some of eager, tensorrt"):
        open_compared(bundle, backends=("magic",))


def test_a_pipeline_is_compared_like_a_bundle():
    from tiny_images import build_dit

    from zeus_trt.evaluation.pipeline_workload import PipelineWorkload

    torch.manual_seed(0)
    pipeline = build_dit()
    pipeline.set_progress_bar_config(disable=True)
    workload = PipelineWorkload(pipeline, [1, 2, 3], {"guidance_scale": 4.0})
    subject = open_subject(workload)
    assert subject.asked == ("eager",)
    result = run(subject, steps=(8,), ratios=(2,), rounds=1, peers=Peer.parse("pab=2"))
    assert [row.nfe for row in result.rows] == [8, 5, 8]
    assert [row.to_full.latent_error > 0 for row in result.rows] == [False, True, True]
    assert result.rows[2].nfe_equivalent < 8
    with pytest.raises(ZeusError, match="for a pipeline alone"):
        open_subject(workload, ("onnxruntime",))
    with pytest.raises(ZeusError, match="expected some of eager"):
        open_subject(workload, ())


def test_peak_memory_sees_an_allocation():
    reset_peak_memory()
    before = peak_memory_mib()
    block = bytearray(64 << 20)
    assert peak_memory_mib() >= before + 60
    del block


def test_the_bound_of_a_policy_counts_the_rows_of_its_calls(bundle):
    subject = make_subject(bundle, eager=ToyEngine("eager"))
    variants = make_variants(subject.workload, Grid(("eager",), ratios=(), steps=(30,), peers=Peer.parse("sada=3")))
    (row,) = (row for row in compare(subject, variants, MeasureOptions(num_images=4, rounds=1)).rows if row.peer)
    plans = subject.workload.run(variants[1].setting, range(4)).report.row_plans
    work = sum(plan.count("F") for plan in plans) / 4
    assert work < row.nfe, "rows skip at different steps"
    assert (row.nfe_equivalent, row.speedup_bound) == (pytest.approx(work), pytest.approx(30 / work))
