"""The paper's tables: what they run, and that their verdicts follow from the rows."""

import json
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest
from checkout import ROOT
from click.testing import CliRunner
from toy_subject import make_subject

from zeus_trt.evaluation.quality import Quality
from zeus_trt.evaluation.row import Row
from zeus_trt.evaluation.variants import make_variants

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "benchmarks")
    PAPER = runpy.run_path(str(ROOT / "benchmarks" / "paper.py"))
TABLES = PAPER["TABLES"]


def make_row(ratio, predictor="zeus", psnr=50.0, **changes):
    quality = Quality(psnr_db=psnr, latent_error=0.1)
    row = Row(f"r = {ratio}", "onnxruntime", "default", 50, ratio, "FFXF", predictor, None, nfe=27, to_full=quality)
    return replace(row, **changes)


def judge(name, rows, state=None):
    return [claim.rule(rows, state or {})[1] for claim in TABLES[name].claims]


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


def test_tables_without_a_claim_have_no_verdict():
    rows = [make_row(2), make_row(3)]
    assert judge("solver-order", rows) == judge("parameterisation", rows) == [None]
    assert judge("few-steps", rows) == [None, None]


def test_every_grid_makes_variants(digits_bundle):
    workload = make_subject(digits_bundle("unet-flow")).workload
    sizes = {name: len(make_variants(workload, table.grid)) for name, table in TABLES.items()}
    assert sizes == {
        "predictor-order": 13, "interleaving": 22, "solver-order": 9, "few-steps": 9, "parameterisation": 4, "memory": 3
    }  # fmt: skip


def test_a_table_is_run_and_written(digits_bundle, tmp_path):
    bundle = digits_bundle("unet-flow")
    words = ["memory", "--model", str(bundle), "--num-images", "1", "--guidance-scale", "1", "-o", str(tmp_path)]
    done = CliRunner().invoke(PAPER["main"], words)
    assert done.exit_code == 0, done.output
    (outcome,) = json.loads((tmp_path / "paper.json").read_text())["studies"]
    assert outcome["study"] == "memory"
    assert outcome["state_latents"] == {"r = 2": 2, "r = 4": 2}
    assert [row["nfe"] for row in outcome["comparison"]["rows"]] == [50, 27, 22]
    text = (tmp_path / "paper.md").read_text()
    assert "| r = 2 | 27 |" in text
    assert "memory is O(1)" in text
    assert (tmp_path / bundle.name / "memory" / "report.html").is_file()
    (table,) = json.loads(done.stdout.splitlines()[-1])["tables"]
    assert table["findings"] == outcome["findings"]


def test_an_unknown_table_is_refused():
    done = CliRunner().invoke(PAPER["main"], ["colour"])
    assert done.exit_code == 2
    assert "is not one of 'predictor-order', 'interleaving'" in done.stderr


def test_the_script_has_its_tables_beside_it():
    command = [sys.executable, str(ROOT / "benchmarks" / "paper.py"), "--help"]
    assert "--num-images" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
