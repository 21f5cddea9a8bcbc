"""The paper's studies: what they run, and that their verdicts follow from the rows."""

import subprocess
import sys
from dataclasses import replace

import pytest
from checkout import ROOT

from zeus_trt.errors import ZeusError
from zeus_trt.evaluation.comparison import Comparison, Row
from zeus_trt.evaluation.quality import Quality
from zeus_trt.evaluation.studies import STUDIES, run_study


def make_row(ratio, predictor="zeus", psnr=50.0, **changes):
    quality = Quality(psnr_db=psnr, latent_error=0.1)
    row = Row(f"r = {ratio}", "onnxruntime", "default", 50, ratio, "FFXF", predictor, None, nfe=27, to_full=quality)
    return replace(row, **changes)


def judge(name, rows, state=None):
    comparison = Comparison({}, {}, {}, (), tuple(rows))
    return [finding.agrees for finding in STUDIES[name].judge(comparison, state or {})]


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


def test_studies_without_a_claim_have_no_verdict():
    rows = [make_row(2), make_row(3)]
    assert judge("solver-order", rows) == judge("parameterisation", rows) == [None]
    assert judge("few-steps", rows) == [None, None]


def test_every_grid_makes_cells(digits_bundle):
    from toy_subject import make_subject

    from zeus_trt.evaluation.cells import make_cells

    workload = make_subject(digits_bundle("unet-flow")).workload
    sizes = {name: len(make_cells(workload, **study.grid)) for name, study in STUDIES.items()}
    assert sizes == {
        "predictor-order": 13, "interleaving": 22, "solver-order": 9, "few-steps": 9, "parameterisation": 4, "memory": 3
    }  # fmt: skip


def test_a_study_is_run_and_written(digits_bundle, tmp_path):
    outcome = run_study("memory", digits_bundle("unet-flow"), tmp_path, num_images=1, guidance_scale=1.0)
    assert outcome.state == {"r = 2": 2, "r = 4": 2}
    assert [row.nfe for row in outcome.comparison.rows] == [50, 27, 22]
    text = outcome.to_markdown()
    assert "| r = 2 | 27 |" in text
    assert "memory is O(1)" in text
    assert (tmp_path / "memory" / "report.html").is_file()
    assert outcome.to_json()["study"] == "memory"


def test_an_unknown_study_is_refused(tmp_path):
    with pytest.raises(ZeusError, match="expected one of predictor-order, interleaving"):
        run_study("colour", tmp_path, tmp_path)


def test_the_example_says_what_it_does():
    command = [sys.executable, str(ROOT / "examples" / "reproduce_paper.py"), "--help"]
    assert "--num-images" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
