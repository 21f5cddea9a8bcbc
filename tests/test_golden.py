"""The files of FORMAT.md as they were written once: they are read, and written again to the byte."""

import json
import shutil

import pytest
import torch
from golden_files import GOLDEN, sample

from zeus_trt.errors import ZeusError
from zeus_trt.runtime import Bundle, Manifest
from zeus_trt.runtime.bundle.engine_record import EngineRecord
from zeus_trt.zeus_graph import Plan, SamplingProgram, SolverProgram
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan


def test_the_bundle_makes_the_same_latents():
    expected = torch.tensor(json.loads((GOLDEN / "latents.json").read_text()))
    torch.testing.assert_close(sample().flatten(), expected, rtol=1e-6, atol=1e-6)


def read_data(kind):
    return lambda text: kind.from_json(json.loads(text)).to_json()


@pytest.mark.parametrize(
    ("file", "again"),
    [
        ("bundle/manifest.json", lambda text: json.loads(Manifest.from_json(text).to_json())),
        ("bundle/solvers/5.json", read_data(SolverProgram)),
        ("sampling_program.json", read_data(SamplingProgram)),
        ("plan.json", read_data(Plan)),
        ("calibrated_plan.json", read_data(CalibratedPlan)),
        ("engine.json", lambda text: json.loads(EngineRecord.from_json(text).to_json())),
    ],
)
def test_a_file_that_is_read_is_written_as_it_was(file, again):
    text = (GOLDEN / file).read_text()
    assert json.loads(json.dumps(again(text))) == json.loads(text)


def test_the_first_format_is_refused_with_the_command_that_makes_a_new_bundle(tmp_path):
    shutil.copytree(GOLDEN / "bundle", tmp_path / "bundle")
    (tmp_path / "bundle" / "manifest.json").write_text('{"format": 1, "model": "old"}')
    with pytest.raises(ZeusError, match=r"got format 1; expected 2.*zeus-trt export MODEL -o BUNDLE --overwrite"):
        Bundle.open(tmp_path / "bundle")
