"""Whole pipelines: from a folder with text encoders, or from objects, to verified bundles."""

import json

import diffusers
import pytest
import torch
import transformers
from click.testing import CliRunner
from pipelines import FAMILIES

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.export import export_pipeline
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random Stable Diffusion pipeline on disk, with text encoder and tokenizer."""
    root = tmp_path_factory.mktemp("pipelines")
    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (root / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(words)}))
    (root / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(
        vocab=str(root / "vocab.json"), merges=str(root / "merges.txt"), model_max_length=16
    )
    torch.manual_seed(0)
    text = transformers.CLIPTextConfig(
        vocab_size=len(words), hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=16, bos_token_id=len(words) - 2, eos_token_id=len(words) - 1,
    )  # fmt: skip
    unet = diffusers.UNet2DConditionModel(
        sample_size=32, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, cross_attention_dim=32,
        attention_head_dim=2, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    pipeline = diffusers.StableDiffusionPipeline(
        unet=unet, vae=diffusers.AutoencoderKL(block_out_channels=(8,) * 4, norm_num_groups=4, layers_per_block=1,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4),
        text_encoder=transformers.CLIPTextModel(text), tokenizer=tokenizer,
        scheduler=diffusers.PNDMScheduler(skip_prk_steps=True), safety_checker=None, feature_extractor=None,
    )  # fmt: skip
    pipeline.save_pretrained(root / "tiny sd")
    return root / "tiny sd"


@pytest.fixture(scope="module")
def bundle(folder, tmp_path_factory):
    return export_pipeline(folder, tmp_path_factory.mktemp("bundles") / "sd")


def test_a_folder_becomes_a_verified_bundle(bundle):
    manifest = Bundle.open(bundle.path).manifest
    assert manifest == bundle.manifest
    assert (manifest.model, manifest.component, manifest.pipeline_class) == (
        "tiny sd",
        "unet",
        "StableDiffusionPipeline",
    )
    assert [(spec.name, spec.axes, spec.role) for spec in manifest.inputs] == [
        ("sample", ("batch", 4, "height", "width"), "latents"),
        ("timestep", ("batch",), "timestep"),
        ("encoder_hidden_states", ("batch", 16, 32), "conditioning"),
    ]
    assert manifest.guidance == "batched"
    assert {symbol.name: symbol.multiple_of for symbol in manifest.symbols} == {"batch": 1, "height": 2, "width": 2}
    assert len({record.shape[2:] for record in manifest.verification}) == 4
    assert all(0 < record.relative_error < 1e-4 for record in manifest.verification)
    assert (bundle.path / "solvers" / "50.json").is_file()


def test_the_engine_serves_any_size_of_its_range(bundle):
    engine = OnnxRuntimeEngine(bundle.onnx, num_threads=1)
    output = engine(
        sample=torch.randn(3, 4, 10, 14), timestep=torch.tensor([1.0, 500.0, 999.0]),
        encoder_hidden_states=torch.randn(3, 16, 32),
    )  # fmt: skip
    assert output.shape == (3, 4, 10, 14)
    assert torch.isfinite(output).all()


def test_the_users_pipeline_is_unchanged(folder, tmp_path):
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.unet.train()

    def sample():
        generator = torch.Generator().manual_seed(0)
        return pipeline("a cat", num_inference_steps=2, output_type="latent", height=64, width=64, generator=generator)[
            0
        ]

    before, kept = sample(), {name: dict(vars(part)) for name, part in pipeline.components.items() if part is not None}
    export_pipeline(pipeline, tmp_path / "bundle", sizes=[(64, 64)], steps=())
    assert pipeline.unet.training
    assert torch.equal(sample(), before)
    for name, attributes in kept.items():
        assert vars(getattr(pipeline, name)).keys() == attributes.keys()


def test_classes_need_no_settings(tmp_path):
    pipeline = FAMILIES["dit"].make()
    manifest = export_pipeline(pipeline, tmp_path / "bundle").manifest
    assert [spec.name for spec in manifest.inputs] == ["hidden_states", "timestep", "class_labels"]


@pytest.mark.parametrize(
    ("model", "component", "reason"),
    [
        ("nobody/nothing", None, "which does not load"),
        ("FOLDER", "transformer", "transformer"),
        ("FOLDER", "vae", "vae"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_left(folder, tmp_path, model, component, reason):
    with pytest.raises(ZeusError, match=reason):
        export_pipeline(folder if model == "FOLDER" else model, tmp_path / "bundle", component=component)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(folder, tmp_path, monkeypatch):
    def interrupt(captured, path):
        path.write_bytes(b"half a graph")
        raise KeyboardInterrupt

    monkeypatch.setattr("zeus_trt.export.pipeline.export_capture", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_pipeline(folder, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_takes_pipelines(folder, tmp_path):
    sizes = ["--size", "64x64", "--size", "128x192"]
    words = ["export", str(folder), "-o", str(tmp_path / "bundle"), *sizes, "--steps", "10"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "batch, height, width may vary" in done.stdout
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert {symbol.name: symbol.observed for symbol in manifest.symbols[1:]} == {"height": (8, 16), "width": (8, 24)}
    assert {record.shape[2:] for record in manifest.verification} == {(8, 8), (16, 24), (8, 16)}
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "bundle")])
    assert "sample float32 (batch, 4, height, width)" in shown.stdout
    for words in (["--null-label", "3"], ["--size", "64"]):
        assert CliRunner().invoke(main, ["export", str(folder), "-o", str(tmp_path / "other"), *words]).exit_code > 0
