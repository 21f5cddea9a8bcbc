"""Step policies of quantized checkpoints are plans of F and Q, and back."""

import json

import pytest
from click.testing import CliRunner

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.zeus_graph import Plan, choose_plan, load_plan
from zeus_trt.zeus_graph.step_policy import find_step_policy, read_step_policy, write_step_policy

POLICY = {
    "schema_version": 1, "type": "first_last_n", "index_space": "denoising_loop_iteration", "scope": ["transformer"],
    "default_mode": "native", "first_steps": {"count": 3, "mode": "a16"}, "last_steps": {"count": 2, "mode": "a16"},
    "overlap": "a16", "reasoner": "a16",
}  # fmt: skip


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"quantization_config": {"runtime": {"diffusion_step_policy": POLICY}}, "depth": 2}))
    return path


@pytest.mark.parametrize(("count", "letters"), [(8, "FFFQQQFF"), (6, "FFFQFF"), (5, "FFFFF"), (3, "FFF"), (1, "F")])
def test_a_policy_is_a_plan_of_any_length(config, count, letters):
    assert read_step_policy(POLICY, count).steps == letters
    assert load_plan(config, count).steps == load_plan(str(config), count).steps == letters
    assert choose_plan(config)(count).steps == letters


def test_modes_and_overlap_are_read():
    policy = {**POLICY, "default_mode": "a16", "first_steps": {"count": 2, "mode": "native"}, "overlap": "native"}
    assert read_step_policy(policy, 5).steps == "QQFFF"
    assert read_step_policy({**policy, "last_steps": {"count": 4, "mode": "a16"}}, 5).steps == "QQFFF"
    assert read_step_policy({**policy, "last_steps": {"count": 5, "mode": "a16"}, "overlap": "a16"}, 5).steps == "FFFFF"


@pytest.mark.parametrize("letters", ["FFFQQQFF", "QQQ", "FQQ", "QQF", "FFFF"])
def test_a_plan_is_written_and_read_again(letters):
    written = write_step_policy(Plan(letters))
    assert written.keys() == POLICY.keys()
    assert read_step_policy(json.loads(json.dumps(written)), len(letters)).steps == letters


@pytest.mark.parametrize("letters", ["FQFQ", "FFXF", "QFQ"])
def test_other_plans_have_no_policy(letters):
    with pytest.raises(ZeusError, match=r"^plan: got .* expected F at both ends and Q between"):
        write_step_policy(Plan(letters))


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2}, {"type": "interval"}, {"index_space": "timestep"}, {"default_mode": "fp4"},
        {"first_steps": {"count": -1, "mode": "a16"}}, {"last_steps": None}, {"overlap": "both"},
        {"first_steps": {"count": True, "mode": "a16"}}, {"first_steps": {"count": 3}}, {"default_mode": ["a16"]},
    ],
)  # fmt: skip
def test_policies_that_are_not_known_are_refused(change):
    with pytest.raises(ZeusError, match=r"^step policy: got "):
        read_step_policy({**POLICY, **change}, 8)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            {"quantization_config": {"bits": 8}},
            r"^plan: got .*config\.json, which has no plan and no diffusion_step_pol",
        ),
        ({"quantization_config": None}, "no diffusion_step_policy"),
        ({"diffusion_step_policy": {"count": 3}}, r"^step policy: got None as schema_version; expected 1"),
        ({"diffusion_step_policy": [POLICY]}, r"^step policy: got None as schema_version; expected 1"),
        ({**POLICY, "last_steps": {"count": 2.5, "mode": "a16"}}, r"got 2\.5 as last_steps\.count; expected a number"),
    ],
)
def test_a_file_without_a_policy_that_can_be_read_is_refused(config, content, words):
    config.write_text(json.dumps(content))
    with pytest.raises(ZeusError, match=words):
        load_plan(config, 8)


def test_a_policy_needs_a_number_of_steps(config):
    with pytest.raises(ZeusError, match="num_steps: got none"):
        load_plan(config)
    assert find_step_policy({"quantization_config": {"bits": 8}}) is None


def test_the_command_line_reads_and_writes_one(config):
    shown = CliRunner().invoke(main, ["plan", "--plan", str(config), "--steps", "8"])
    assert shown.output.startswith("FFFQQQFF\n"), shown.output
    written = CliRunner().invoke(main, ["plan", "--plan", "FFFQQQFF", "--step-policy"])
    assert json.loads(written.output) == POLICY
    refused = CliRunner().invoke(main, ["plan", "--plan", "FFXF", "--step-policy"])
    assert refused.exit_code == 1
