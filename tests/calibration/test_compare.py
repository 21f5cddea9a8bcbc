"""Comparisons: what is counted, what is written, and that impossible speed-ups are called so."""

import dataclasses
import json

import pytest
import torch
from PIL import Image

from zeus_trt.calibration import compare_ratios
from zeus_trt.calibration.memory import peak_memory_mib, reset_peak_memory
from zeus_trt.errors import ZeusError

LABELS = {"class_labels": torch.tensor([1, 2])}


@pytest.fixture(scope="module")
def comparison(flow_session, tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison") / "new"
    settings = {"ratios": (2, 4), "num_steps": 10, "guidance_scale": 2.0, "rounds": 2}
    return compare_ratios(flow_session, LABELS, output=folder, **settings), folder, settings


def test_rows_say_what_the_plans_say(comparison):
    rows = comparison[0].rows
    assert [row.ratio for row in rows] == [0, 2, 4]
    assert [row.nfe for row in rows] == [row.plan.count("F") for row in rows] == [10, 6, 5]
    assert [row.speedup_bound for row in rows] == [1.0, 10 / 6, 2.0]
    assert rows[0].psnr_db is None
    assert rows[0].speedup == 1.0
    assert all(15 < row.psnr_db < 60 and row.ssim < 1 for row in rows[1:])
    assert all(row.speedup_min <= row.speedup <= row.speedup_max for row in rows)


def test_quality_is_the_same_in_every_run(comparison, flow_session):
    first, _, settings = comparison
    again = compare_ratios(flow_session, LABELS, **settings)
    assert [(row.psnr_db, row.ssim) for row in again.rows] == [(row.psnr_db, row.ssim) for row in first.rows]


def test_grid_and_json_are_written(comparison):
    result, folder, _ = comparison
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.json", "grid.png"]
    assert json.loads((folder / "comparison.json").read_text()) == result.to_json()
    assert Image.open(folder / "grid.png").height > 3 * 64


def test_a_speedup_above_its_bound_is_called_a_measuring_error(comparison):
    result, row = comparison[0], comparison[0].rows[1]
    for speedup, said in ((9.0, True), (1.1, False)):
        changed = dataclasses.replace(result, rows=(dataclasses.replace(row, speedup=speedup),))
        assert ("measuring error" in changed.to_table()) is said


def test_an_output_that_cannot_be_made_is_refused_before_the_work(flow_session, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ZeusError, match="cannot be made"):
        compare_ratios(flow_session, LABELS, num_steps=10, output=tmp_path / "file" / "folder", on_call=pytest.fail)


def test_peak_memory_sees_an_allocation():
    reset_peak_memory()
    before = peak_memory_mib()
    block = bytearray(64 << 20)
    assert peak_memory_mib() >= before + 60
    del block
