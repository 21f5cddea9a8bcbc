"""Whole pipelines: from a folder with text encoders, or from objects, to verified bundles."""

import diffusers
import pytest
import torch
from click.testing import CliRunner
from pipelines import FAMILIES
from tiny_unets import one_level_unet

from zeus_trt.cli import main
from zeus_trt.errors import ZeusError
from zeus_trt.export import export_model
from zeus_trt.runtime import Bundle, OnnxRuntimeEngine


@pytest.fixture(scope="module")
def folder(tiny_pipeline):
    return tiny_pipeline


@pytest.fixture(scope="module")
def bundle(export_tiny_pipeline):
    return export_tiny_pipeline()


@pytest.fixture(scope="module")
def one_level(folder, tmp_path_factory):
    """Folder of the same around a UNet of one level."""
    pipeline = diffusers.DiffusionPipeline.from_pretrained(folder)
    torch.manual_seed(0)
    pipeline.register_modules(unet=one_level_unet(cross_attention_dim=32))
    made = tmp_path_factory.mktemp("one level") / "tiny sd"
    pipeline.save_pretrained(made)
    return made


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
    sides = {record.shape[2:] for record in manifest.find_graph().verification}
    assert {(high > wide) - (high < wide) for high, wide in sides} == {-1, 0, 1}
    assert all(0 < record.relative_error < 1e-4 for record in manifest.find_graph().verification)
    assert (bundle.path / "solvers" / "50.json").is_file()


def test_the_engine_serves_any_size_of_its_range(bundle):
    engine = OnnxRuntimeEngine(bundle.graph(), num_threads=1)
    output = engine(
        sample=torch.randn(3, 4, 10, 14), timestep=torch.tensor([1.0, 500.0, 999.0]),
        encoder_hidden_states=torch.randn(3, 16, 32),
    )  # fmt: skip
    assert output.shape == (3, 4, 10, 14)
    assert torch.isfinite(output).all()


@pytest.mark.extra
def test_the_users_pipeline_is_unchanged(one_level, tmp_path):
    pipeline = diffusers.StableDiffusionPipeline.from_pretrained(one_level)
    pipeline.set_progress_bar_config(disable=True)
    pipeline.unet.train()

    def sample():
        generator = torch.Generator().manual_seed(0)
        size = {"height": 64, "width": 64}
        return pipeline("a cat", num_inference_steps=2, output_type="latent", generator=generator, **size)[0]

    def describe():
        return [(type(part), part.training, sorted(vars(part))) for part in pipeline.unet.modules()]

    before, kept = sample(), {name: dict(vars(part)) for name, part in pipeline.components.items() if part is not None}
    modules = describe()
    export_model(pipeline, tmp_path / "bundle", sizes=[(64, 64)], steps=())
    assert pipeline.unet.training
    assert describe() == modules
    assert torch.equal(sample(), before)
    for name, attributes in kept.items():
        assert vars(getattr(pipeline, name)).keys() == attributes.keys()


def test_classes_need_no_settings(tmp_path):
    pipeline = FAMILIES["dit"].make()
    manifest = export_model(pipeline, tmp_path / "bundle").manifest
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
        export_model(folder if model == "FOLDER" else model, tmp_path / "bundle", component=component)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(folder, tmp_path, monkeypatch):
    def interrupt(captured, path):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half a graph")
        raise KeyboardInterrupt

    monkeypatch.setattr("zeus_trt.export.export.export_capture", interrupt)
    with pytest.raises(KeyboardInterrupt):
        export_model(folder, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.extra
def test_the_command_line_takes_pipelines(one_level, tmp_path):
    sizes = ["--size", "64x64", "--size", "128x192"]
    words = ["export", str(one_level), "-o", str(tmp_path / "bundle"), *sizes, "--steps", "10"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    assert "batch, height, width may vary" in done.stdout
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert {symbol.name: symbol.observed for symbol in manifest.symbols[1:]} == {"height": (8, 16), "width": (8, 24)}
    asked, varied = {(8, 8), (16, 24), (8, 16)}, {(16, 8), (8, 24)}
    assert {record.shape[2:] for record in manifest.find_graph().verification} == asked | varied
    shown = CliRunner().invoke(main, ["inspect", str(tmp_path / "bundle")])
    assert "sample float32 (batch, 4, height, width)" in shown.stdout
    for words in (["--null-label", "3"], ["--size", "64"]):
        assert CliRunner().invoke(main, ["export", str(one_level), "-o", str(tmp_path / "other"), *words]).exit_code > 0
