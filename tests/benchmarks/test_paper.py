"""The paper's tables: what they run, and that their verdicts follow from the rows."""

import json
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from checkout import ROOT
from click.testing import CliRunner
from toy_subject import make_subject

from zeus_trt.evaluation.quality import Quality
from zeus_trt.evaluation.row import Row
from zeus_trt.evaluation.variants import make_variants
from zeus_trt.runtime import Session
from zeus_trt.zeus_graph import Plan

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "benchmarks")
    PAPER = runpy.run_path(str(ROOT / "benchmarks" / "paper.py"))
STUDIES = PAPER["STUDIES"]
EQUAL = None  # PSNR of equal images


def make_row(ratio, predictor="zeus", psnr=50.0, **changes):
    quality = Quality(psnr_db=psnr, latent_error=0.1)
    row = Row(f"r = {ratio}", "onnxruntime", "default", 50, ratio, "FFXF", predictor, None, nfe=27, to_full=quality)
    return replace(row, **changes)


def judge(name, rows, state=None):
    return [finding.agrees for finding in STUDIES[name].judge(rows, state or {})]


def judge_across(name, models):
    return [finding.agrees for finding in STUDIES[name].judge_across(models)]


@pytest.mark.parametrize(
    ("reuse", "third", "agrees"), [(40.0, 49.0, [True, True]), (51.0, 49.0, [False, True]), (40.0, 50.1, [True, False])]
)
def test_predictor_order(reuse, third, agrees):
    psnr = {"zeus": 50.0, "reuse": reuse, "lagrange-3@index": third, "lagrange-2@index": 49.5}
    rows = [make_row(ratio, name, value) for name, value in psnr.items() for ratio in (1, 2)]
    assert judge("predictor-order", rows) == agrees


@pytest.mark.parametrize(("chained", "agrees"), [(5.0, True), (30.0, False)])
def test_interleaving(chained, agrees):
    rows = [make_row(ratio, name, value) for name, value in (("zeus", 50.0), ("reuse", 40.0)) for ratio in (1, 4)]
    rows += [make_row(1, "extrapolate", 45.0), make_row(4, "extrapolate", chained)]
    assert judge("interleaving", rows) == [True, agrees]


@pytest.mark.parametrize(("mib", "latents", "agrees"), [(102.0, 2, True), (150.0, 2, False), (102.0, 3, False)])
def test_memory(mib, latents, agrees):
    rows = [make_row(2, host_mib=100.0), make_row(4, host_mib=mib)]
    assert judge("memory", rows, {"r = 2": 2, "r = 4": latents}) == [agrees]


@pytest.mark.parametrize(
    ("lpips", "psnr", "agrees"),
    [
        ((0.3, 0.2, 0.1), (50.0, 50.4, 49.6), [True, True]),
        ((0.3, 0.3, 0.1), (50.0, 50.0, 50.0), [False, True]),
        ((0.3, 0.2, 0.25), (50.0, 51.1, 50.0), [False, False]),
        ((None, None, None), (57.2, 53.8, 52.3), [None, False]),
        ((0.3, None, 0.1), (EQUAL, EQUAL, EQUAL), [None, True]),
        ((None, None, None), (EQUAL, 60.0, EQUAL), [None, False]),
    ],
)
def test_solver_order(lpips, psnr, agrees):
    rows = [
        make_row(2, solver=solver, to_full=Quality(psnr_db=one, lpips=distance))
        for solver, one, distance in zip(("euler", "dpmpp-2m", "dpmpp-3m"), psnr, lpips, strict=True)
    ]
    assert judge("solver-order", rows) == judge("solver-order", rows[::-1]) == agrees


def test_solver_order_by_fid_and_at_every_ratio():
    def make(ratio, fids):
        solvers = ("euler", "dpmpp-2m", "dpmpp-3m")
        return [make_row(ratio, solver=name, to_full=Quality(fid=fid)) for name, fid in zip(solvers, fids, strict=True)]

    assert judge("solver-order", make(2, (9.0, 8.0, 7.0)) + make(3, (9.0, 8.0, 7.0)))[0] is True
    assert judge("solver-order", make(2, (9.0, 8.0, 7.0)) + make(3, (9.0, 8.0, 8.5)))[0] is False


@pytest.mark.parametrize(
    ("psnr", "calls", "agrees"),
    [
        ((50.0, 49.5, 49.0), (27, 16, 12), [True, True, None]),
        ((50.0, 52.0, 55.0), (27, 16, 13), [True, False, None]),
        ((50.0, 48.9, 48.8), (27, 14, 9), [False, False, None]),
        ((57.2, 47.8, 38.9), (27, 16, 12), [False, True, None]),
        ((50.0, EQUAL, EQUAL), (27, 16, 12), [True, True, None]),
        ((EQUAL, 60.0, 60.0), (27, 16, 12), [False, True, None]),
    ],
)
def test_few_steps(psnr, calls, agrees):
    rows = [
        make_row(2, psnr=one, num_steps=steps, nfe=nfe)
        for steps, one, nfe in zip((50, 25, 15), psnr, calls, strict=True)
    ]
    assert judge("few-steps", rows) == judge("few-steps", rows[::-1]) == agrees


@pytest.mark.parametrize(
    ("psnr", "agrees"),
    [((50.0, 50.9), [True, True]), ((50.0, 57.0), [True, False]), ((29.9, 50.0), [False, False]),
     ((29.0, 29.5), [False, True])],
)  # fmt: skip
def test_parameterisation(psnr, agrees):
    models = {name: [make_row(2, psnr=one), make_row(4, psnr=50.0)] for name, one in zip("ab", psnr, strict=True)}
    assert judge_across("parameterisation", models) == agrees


def test_one_model_says_nothing_of_parameterisation():
    assert judge_across("parameterisation", {"a": [make_row(2)]}) == [None, None]


@pytest.mark.parametrize(
    ("psnr", "agrees"),
    [
        ((40.0, 50.0, 45.0), [True, True]),
        ((50.0, 40.0, 30.0), [False, True]),
        ((40.0, 50.0, 51.0), [True, False]),
        ((40.0, 3.0, 4.0), [False, None]),
    ],
)
def test_figure_3a(psnr, agrees):
    names = [f"local-{order}@index" for order in (1, 2, 3)]
    rows = [make_row(ratio, name, one) for name, one in zip(names, psnr, strict=True) for ratio in (1, 2)]
    assert judge("figure-3a", rows) == agrees


@pytest.mark.parametrize(
    ("mse", "agrees"),
    [((3.0, 1.0, 2.0), [True, True]), ((1.0, 2.0, 3.0), [False, True]), ((3.0, 2.0, 1.0), [True, False])],
)
def test_figure_3b(mse, agrees):
    errors = [
        PAPER["PredictionErrors"](f"local-{order}", ratio, "FFXXF", (None, None, one, one, None))
        for order, one in zip((1, 2, 3), mse, strict=True)
        for ratio in (1, 2)
    ]
    assert [finding.agrees for finding in STUDIES["figure-3b"].judge(errors)] == agrees


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in ("memory", "parameterisation")])
def test_nothing_measured_has_no_verdict(name):
    assert not any(
        finding.agrees for finding in STUDIES[name].judge(*([],) if "figure-3b" in name else ([make_row(0)], {}))
    )


@pytest.mark.extra
def test_every_grid_makes_variants(digits_bundle):
    workload = make_subject(digits_bundle("unet-flow")).workload
    sizes = {
        name: len(make_variants(workload, table.grid)) for name, table in STUDIES.items() if hasattr(table, "grid")
    }
    assert sizes == {
        "predictor-order": 13, "figure-3a": 10, "interleaving": 22, "solver-order": 9, "few-steps": 9,
        "parameterisation": 4, "memory": 3, "baselines": 11, "composition": 3,
    }  # fmt: skip


@pytest.mark.extra
def test_a_table_is_run_and_written(digits_bundle, tmp_path):
    bundle = digits_bundle("unet-flow")
    words = ["memory", "--model", str(bundle), "--num-images", "1", "--guidance-scale", "1", "-o", str(tmp_path)]
    done = CliRunner().invoke(PAPER["main"], words)
    assert done.exit_code == 0, done.output
    (page,) = json.loads((tmp_path / "paper.json").read_text())["studies"]
    assert page["study"] == "memory"
    (outcome,) = page["models"].values()
    assert outcome["state_latents"] == {"r = 2": 2, "r = 4": 2}
    assert [row["nfe"] for row in outcome["comparison"]["rows"]] == [50, 27, 22]
    text = (tmp_path / "memory.md").read_text()
    assert "| r = 2 | 27 |" in text
    assert "memory is O(1)" in text
    assert f"python benchmarks/paper.py memory --model {bundle} --guidance-scale 1.0 --seed 0 --num-images 1" in text
    assert (tmp_path / bundle.name / "memory" / "report.html").is_file()
    (table,) = json.loads(done.stdout.splitlines()[-1])["tables"]
    assert table["findings"] == page["findings"]


@pytest.mark.slow
def test_a_table_is_run_on_a_pipeline_with_prompts(tiny_pipeline, tmp_path):
    """The way of the paper's own pipelines, on one with random weights."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat\na dog\n")
    words = ["memory", "--model", str(tiny_pipeline), "--prompts", str(prompts), "--num-images", "2"]
    done = CliRunner().invoke(PAPER["main"], [*words, "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    (page,) = json.loads((tmp_path / "out/paper.json").read_text())["studies"]
    (outcome,) = page["models"].values()
    assert [row["nfe"] for row in outcome["comparison"]["rows"]] == [50, 27, 22]
    assert "2 latents of state" not in page["findings"][0]["measured"]  # a pipeline has no program
    assert f"--prompts {prompts}" in (tmp_path / "out/memory.md").read_text()


def test_errors_of_predictions_are_those_of_the_run(digits_bundle):
    """The run is that of the plan, and the errors are the predictions minus the outputs at its own latents."""
    workload = make_subject(digits_bundle("unet-flow")).workload
    plan = Plan("FFXXF" + "FXXF" * 3)
    found = PAPER["measure_errors"](workload, plan, "local-2", 2, num_steps=len(plan))
    assert [error is None for error in found.mse] == [letter == "F" for letter in plan.steps]
    session, outputs, samples = Session(workload.bundle), [], []
    conditioning = session.label_images(None, 2)
    session.generate(conditioning, plan=plan, predictor="local-2", num_steps=len(plan), seed=[0, 1],
                     on_step=lambda step: (outputs.append(step.output), samples.append(step.latents)))  # fmt: skip
    step = 7
    timestep = torch.full((2,), session.solver.program(len(plan)).timesteps[step])
    real = session.engine(sample=samples[step - 1], timestep=timestep, **conditioning)
    assert found.mse[step] == pytest.approx(float((outputs[step] - real).double().square().mean()), rel=1e-5)


@pytest.mark.slow
def test_the_figure_is_run_written_and_resumed(digits_bundle, tmp_path):
    bundle = digits_bundle("unet-flow")
    words = ["figure-3b", "--model", str(bundle), "--num-images", "1", "--guidance-scale", "1", "-o", str(tmp_path)]
    done = CliRunner().invoke(PAPER["main"], words)
    assert done.exit_code == 0, done.output
    folder = tmp_path / bundle.name / "figure-3b"
    assert (folder / "errors.png").stat().st_size > 10_000
    page = (tmp_path / "figure-3b.md").read_text()
    assert "| step | local-1, r = 1 |" in page
    kept = {file: file.stat().st_mtime_ns for file in folder.glob("*.json")}
    assert len(kept) == 12
    again = CliRunner().invoke(PAPER["main"], words)
    assert again.exit_code == 0, again.output
    assert {file: file.stat().st_mtime_ns for file in folder.glob("*.json")} == kept
    assert (tmp_path / "figure-3b.md").read_text() == page


def test_an_unknown_table_is_refused():
    done = CliRunner().invoke(PAPER["main"], ["colour"])
    assert done.exit_code == 2
    assert "is not one of 'predictor-order', 'figure-3a'" in done.stderr


def test_the_script_has_its_tables_beside_it():
    command = [sys.executable, str(ROOT / "benchmarks" / "paper.py"), "--help"]
    assert "--num-images" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
