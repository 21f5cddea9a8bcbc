"""`zeus-trt import`, and the commands that take its bundle, with conditioning by name."""

import json
import runpy

import numpy as np
import onnx
import pytest
import torch
from checkout import ROOT
from click.testing import CliRunner

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.open_model import open_model
from zeus_trt.runtime import Bundle, Session
from zeus_trt.serving.image_request import ImageRequest
from zeus_trt.serving_model import ServedModel
from zeus_trt.zeus_graph import choose_plan

NAMES = ("--latents", "x", "--timestep", "sigma", "--parameterization", "edm")
COMMON = ("--steps", 12)


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """The mixture of examples/foreign_edm.py, smaller."""
    script = runpy.run_path(str(ROOT / "examples/foreign_edm.py"))
    means, labels = script["read_means"]()
    path = tmp_path_factory.mktemp("foreign") / "mixture.onnx"
    onnx.save(script["build"](means[::4], labels[::4]), path)
    return path


@pytest.fixture(scope="module")
def bundle(graph):
    folder = graph.parent / "bundle"
    done = call("import", graph, "-o", folder, *NAMES, "--steps", 12, "--scheduler", "EDMEulerScheduler")
    assert done.exit_code == 0, done.output
    assert "ImportedGraph, batch may vary, relative error to mixture.onnx at most" in done.stdout
    assert "preconditioning inside" in done.stderr
    return folder


def test_a_program_of_torch_makes_the_pictures_of_the_graph_of_the_same_network(tmp_path):
    programs, graphs = (runpy.run_path(str(ROOT / f"examples/foreign_{name}.py")) for name in ("program", "edm"))
    programs["write"](tmp_path / "mixture.pt2")
    graphs["write"](tmp_path / "mixture.onnx")
    refused = call("import", tmp_path / "mixture.pt2", "-o", tmp_path / "pt2", *NAMES)
    assert refused.exit_code == 1
    assert "model: got mixture.pt2, which torch loads with pickle" in refused.stderr
    made = []
    for kind in ("pt2", "onnx"):
        words = ("-o", tmp_path / kind, *NAMES, "--steps", 12, "--scheduler", "EDMEulerScheduler", "--trust-engines")
        done = call("import", tmp_path / f"mixture.{kind}", *words)
        assert done.exit_code == 0, done.output
        made.append(open_model(tmp_path / kind, inputs={"label": 3}).sample(choose_plan(ratio=2), [0], num_steps=12))
    assert made[0].report.nfe < 12
    assert torch.allclose(made[0].latents, made[1].latents, atol=1e-4)


def test_one_command_line_compares_ratios_with_edm_euler_and_edm_dpm(bundle, tmp_path):
    done = call(
        "compare", bundle, "--input", "label=[0,1,2,3]", "--ratios", "0,2,3", "--solvers", "default,dpmpp-2m",
        "--num-images", 4, "--rounds", 1, *COMMON, "--json", "-o", tmp_path / "report",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) == 6
    quality = {(row["solver"], row["plan"]): row for row in rows}
    assert len(quality) == 6
    assert "--input 'label=[0,1,2,3]'" in (tmp_path / "report/report.html").read_text(encoding="utf-8").replace(
        "&#x27;", "'"
    ).replace("&#39;", "'")


def test_pictures_are_those_of_the_labels(bundle, graph, tmp_path):
    np.save(tmp_path / "labels.npy", np.array([3, 7]))
    for value in ("[3,7]", tmp_path / "labels.npy"):
        done = call("run", bundle, "--input", f"label={value}", "--num-images", 2, *COMMON, "-o", tmp_path / "a.png")
        assert done.exit_code == 0, done.output
    sample = open_model(bundle, inputs={"label": [3, 7]}).sample(choose_plan(ratio=0), range(3), num_steps=12)
    with Session(Bundle.open(bundle)) as session:
        expected = session.generate({"label": torch.tensor([3, 7, 3])}, num_steps=12, ratio=0, seed=[0, 1, 2])
    assert torch.equal(sample.latents, expected.latents)
    assert not torch.equal(sample.latents[0], sample.latents[2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--input: got nothing for label int64 (batch); expected a value for each"),
        (("--input", "label=1", "--input", "class=2"), "--input: got class; expected label int64 (batch)"),
        (("--input", "label=nowhere.npy"), "--input: got 'label=nowhere.npy'; expected numbers, or a file that exists"),
        (("--input", "label"), "--input: got 'label'; expected each as NAME=VALUE or NAME=FILE.npy"),
        (("--input", "label=0.5"), "--input: got label, which is no tensor of int64 (it has fractions)"),
        (("--input", "label=[[1]]"), "--input: got label of shape (1, 1); expected label int64 (batch)"),
    ],
)
def test_conditioning_that_does_not_fit_is_one_sentence(bundle, tmp_path, words, message):
    done = call("run", bundle, *words, "-o", tmp_path / "a.png")
    assert done.exit_code == 1
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_wrong_names_list_the_inputs(graph, tmp_path):
    done = call("import", graph, "-o", tmp_path / "b", "--latents", "sample", "--timestep", "sigma")
    assert done.exit_code == 1
    assert "--latents: got 'sample'; expected an input of mixture.onnx: x float32 (n, 1, 16, 16); sigma" in done.stderr


def test_other_solvers_than_those_of_edm_are_refused(bundle, tmp_path):
    words = ("--input", "label=1", "--solver", "unipc", "--budget", 7)
    done = call("calibrate", bundle, *words, "-o", tmp_path / "p.json")
    assert done.exit_code == 1
    assert "--solver: got unipc for an EDM model; expected default, euler, dpmpp-2m, dpmpp-3m" in done.stderr


def test_calibration_finds_a_plan_that_runs_for_its_conditioning_alone(bundle, tmp_path):
    counts = ("--num-trajectories", 2, "--num-validation", 1, "--num-held-out", 1)
    plan = tmp_path / "plan.json"
    done = call("calibrate", bundle, "--input", "label=[4,5]", "--budget", 8, *counts, *COMMON, "-o", plan)
    assert done.exit_code == 0, done.output
    done = call("run", bundle, "--input", "label=[4,5]", "--plan", plan, *COMMON, "--json", "-o", tmp_path / "a.png")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["nfe"] == 8
    assert open_model(bundle, inputs={"label": 4}).describe() != open_model(bundle, inputs={"label": 5}).describe()


def test_a_server_makes_pictures_of_the_conditioning_it_was_started_with(bundle):
    with pytest.raises(ZeusError, match=r"inputs: got class; expected label int64 \(batch\)"):
        ServedModel(str(bundle), inputs=("class=2",)).open()
    service = ServedModel(str(bundle), inputs=("label=[2,3]",)).open_service()
    try:
        made = service.model.submit(ImageRequest(n=2, steps=12, ratio=2, seed=5), time_limit=60).result()
        other = service.model.submit(ImageRequest(n=2, steps=12, ratio=2, seed=5, inputs={"label": 9})).result()
        assert len(made.images) == 2
        assert made.report.nfe < 12
        assert made.images[0].size == (16, 16)
        assert made.images[0].tobytes() != other.images[0].tobytes()
    finally:
        service.close()


def test_pipelines_take_none(tmp_path):
    with pytest.raises(ZeusError, match="inputs: got some for a pipeline, which makes its own"):
        open_model(ROOT / "examples/models/digits-unet-flow", inputs={"label": 1})
