"""Folders of models from anywhere: only schedulers and models are built, and a fault is one sentence."""

import shutil
import struct

import diffusers
import pytest
import torch
from checkout import edit_json
from safetensors.torch import save_file

from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.loading import load_pipeline
from zeus_trt.export.precision import count_numbers
from zeus_trt.runtime.scheduler import load_scheduler, make_scheduler, read_config

BRACKETS = 200_000


@pytest.fixture
def config(tmp_path):
    diffusers.EulerDiscreteScheduler().save_config(tmp_path)
    return tmp_path / "scheduler_config.json"


@pytest.mark.parametrize(
    "name",
    [
        "UNet2DModel", "DiffusionPipeline", "ConfigMixin", "SchedulerMixin", "__class__", "schedulers", "", "os",
        "FlaxDDIMScheduler", "KarrasDiffusionSchedulers", "a.b", "E\x1b[31mScheduler\n", 3, None, ["x", "Scheduler"],
    ],
)  # fmt: skip
def test_only_schedulers_are_built(config, name):
    edit_json(config, _class_name=name)
    with pytest.raises(ZeusError, match="scheduler: got") as caught:
        load_scheduler(config)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_train_timesteps": 10**15},
        {"num_train_timesteps": 10**9},
        {"num_train_timesteps": 0},
        {"num_train_timesteps": "1000"},
        {"num_train_timesteps": True},
        {"beta_schedule": "\x1b[2J\n"},
        {"beta_start": "a"},
        {"beta_end": []},
        {"trained_betas": {"a": 1}},
        {"trained_betas": ["a"]},
    ],
)
def test_a_config_that_does_not_fit_is_a_sentence(config, changes):
    edit_json(config, **changes)
    with pytest.raises(ZeusError, match="scheduler: got") as caught:
        load_scheduler(config)
    assert str(caught.value).isprintable()


def test_an_infinite_number_is_read_only_where_diffusers_writes_one(tmp_path):
    diffusers.DPMSolverMultistepScheduler().save_config(tmp_path)
    file = tmp_path / "scheduler_config.json"
    assert "-Infinity" in file.read_text()
    assert type(load_scheduler(file)) is diffusers.DPMSolverMultistepScheduler
    assert make_scheduler(read_config(file), "dpmpp-2m").config.solver_order == 2
    for changes in ({"beta_end": float("inf")}, {"lambda_min_clipped": float("nan")}, {"a": [float("inf")]}):
        shutil.copy(file, tmp_path / "other.json")
        edit_json(tmp_path / "other.json", **changes)
        with pytest.raises(ZeusError, match="no strict JSON"):
            read_config(tmp_path / "other.json")


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b'{"a":' * BRACKETS, b"[" * BRACKETS, b'{"a": 1e999}'])
def test_an_index_that_is_no_json_is_a_sentence(tmp_path, content):
    (tmp_path / "model_index.json").write_bytes(content)
    with pytest.raises(ZeusError, match="model index"):
        load_pipeline(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"_class_name": "DiffusionPipeline"}, {"_class_name": "EulerDiscreteScheduler"}, {"_class_name": "os"},
        {"_class_name": 3}, {"_class_name": None}, {"_class_name": "UNet2DModel\x1b"},
    ],
)  # fmt: skip
def test_only_models_are_built(tiny_model, tmp_path, changes):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    edit_json(model / "unet" / "config.json", **changes)
    with pytest.raises(ZeusError, match="got the class") as caught:
        load_pipeline(model)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, struct.pack("<Q", 10**12) + b"{}", struct.pack("<Q", 2) + b"[]"])
def test_a_header_of_weights_is_read_with_care(tmp_path, content):
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.float16)}, tmp_path / "weights.safetensors")
    assert count_numbers(tmp_path / "weights.safetensors") == {"fp32": 6, "fp16": 4}
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(ZeusError, match="which cannot be read"):
        count_numbers(tmp_path / "weights.safetensors")


def test_a_cause_without_words_has_its_class():
    assert say_cause(RecursionError()) == "RecursionError"
    assert say_cause(ValueError("\n first\nsecond")) == "first second"
