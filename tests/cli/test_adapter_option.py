"""``--adapter`` of `run` and `compare`."""

import json

import pytest
import torch
from click.testing import CliRunner
from small_adapter import write_two

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.open_model import open_model
from zeus_trt.zeus_graph import choose_plan

STEPS = ("--steps", 5, "--num-images", 2)


def call(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return write_two(tmp_path_factory.mktemp("two") / "bundle")


def test_run_makes_the_picture_of_the_adapters(bundle, tmp_path):
    made = {}
    for name, words in {
        "none": (), "ink": ("ink",), "both": ("ink:0.6", "style:0.1"), "again": ("style:0.1", "ink:0.6"),
    }.items():  # fmt: skip
        chosen = [word for one in words for word in ("--adapter", one)]
        done = call("run", bundle, *chosen, *STEPS, "--ratio", 0, "-o", tmp_path / f"{name}.png")
        assert done.exit_code == 0, done.output
        made[name] = (tmp_path / f"{name}.png").read_bytes()
    assert made["both"] == made["again"]
    assert len({*made.values()}) == 3


def test_compare_measures_against_the_full_run_with_them(bundle, tmp_path):
    words = ("--adapter", "ink", "--adapter", "style:0.1", "--ratios", "0,2", "--rounds", 1, *STEPS, "--json")
    done = call("compare", bundle, *words, "-o", tmp_path / "report")
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["rows"]) == 2
    report = (tmp_path / "report/report.html").read_text(encoding="utf-8")
    assert "--adapter ink --adapter style:0.1" in report


def test_records_say_the_adapter(bundle):
    plain, ink = open_model(bundle), open_model(bundle, adapters=("ink:0.6",))
    assert plain.describe() == {name: value for name, value in ink.describe().items() if name != "adapter"}
    assert ink.describe()["adapter"] == "ink:0.6"
    one, other = (model.sample(choose_plan(ratio=0), [0], num_steps=5).latents for model in (plain, ink))
    assert not torch.equal(one, other)


@pytest.mark.parametrize(("words", "message"), [
    (("--adapter", "oil"), "adapter: got 'oil' for a bundle with ink, style"),
    (("--adapter", "ink:"), "adapter: got 'ink:'; expected a name, or names with scales"),
    (("--adapter", "ink", "--adapter", "ink:0.5"), "adapter: got 'ink,ink:0.5'"),
])  # fmt: skip
def test_wrong_adapters_are_refused(bundle, tmp_path, words, message):
    done = call("run", bundle, *words, *STEPS, "-o", tmp_path / "a.png")
    assert (done.exit_code, message in done.stderr) == (1, True), done.output
    assert not (tmp_path / "a.png").exists()


def test_models_without_a_bundle_have_none(bundle, tiny_pipeline, tmp_path):
    with pytest.raises(ZeusError, match="adapters: got some for a pipeline without an engine"):
        open_model(tiny_pipeline, prompts=["a cat"], adapters=("ink",))
    done = call("compare", bundle, "--model", tiny_pipeline, "--adapter", "ink", "-o", tmp_path / "report")
    assert done.exit_code == 1
    assert "--adapter: got some beside a model" in done.stderr
