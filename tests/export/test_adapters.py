"""Adapters: an export equals the eager pipeline with them, records them, and a folder that lost them is refused."""

import diffusers
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_unets import build_sd, run_sd, tiny_unet

from zeus_trt.errors import ZeusError
from zeus_trt.export.capture import capture
from zeus_trt.export.description import describe
from zeus_trt.export.flat import trace_flat
from zeus_trt.export.loading import load_pipeline
from zeus_trt.export.runs import Settings
from zeus_trt.runtime.bundle.manifest import Graph
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.pipelines.weights_digest import digest_weights


class Lora(torch.nn.Module):
    """A double of peft's layer: a base layer, and what an adapter adds to it."""

    def __init__(self, base_layer, name, scale):
        super().__init__()
        self.base_layer, self.scaling, self.active_adapters, self.merged_adapters = (
            base_layer,
            {name: scale},
            [name],
            [],
        )
        self.lora_A = torch.nn.ModuleDict({name: torch.nn.Linear(base_layer.in_features, 2, bias=False)})
        self.lora_B = torch.nn.ModuleDict({name: torch.nn.Linear(2, base_layer.out_features, bias=False)})
        torch.nn.init.normal_(self.lora_B[name].weight)

    def forward(self, hidden):
        added = sum(self.lora_B[n](self.lora_A[n](hidden)) * self.scaling[n] for n in self.active_adapters)
        return self.base_layer(hidden) + added


def add_lora(unet, name="style", scale=0.5):
    for module in list(unet.modules()):
        if hasattr(module, "to_q"):
            module.to_q = Lora(module.to_q, name, scale)
    return unet


@pytest.mark.parametrize("kind", ["pipeline", "bare"])
def test_weights_saved_with_adapters_are_refused(tmp_path, kind):
    build_sd(unet=add_lora(tiny_unet())).save_pretrained(tmp_path / "saved")
    if kind == "bare":
        (tmp_path / "saved" / "model_index.json").unlink()
    with pytest.raises(ZeusError, match=r"unet, whose weights were saved with the adapter style in them.*fuse_lora"):
        load_pipeline(tmp_path / "saved")


def test_an_adapter_that_is_saved_beside_whole_weights_is_left_alone(tmp_path):
    save_unconditional(tmp_path / "saved")
    adapter = {"unet.down_blocks.0.to_q.lora_A.weight": torch.ones(2, 8)}
    for folder in ("", "unet"):
        save_file(adapter, tmp_path / "saved" / folder / "pytorch_lora_weights.safetensors")
    assert load_pipeline(tmp_path / "saved").unet is not None
    (tmp_path / "saved" / "model_index.json").unlink()
    assert type(load_pipeline(tmp_path / "saved")).__name__ == "BarePipeline"


def test_two_adapters_are_named(tmp_path):
    weights = {f"to_q.{name}": torch.ones(1) for name in ("base_layer.weight", "lora_A.a.weight", "lora_A.b.weight")}
    (tmp_path / "unet").mkdir()
    save_file(weights, tmp_path / "unet" / "diffusion_pytorch_model.safetensors")
    with pytest.raises(ZeusError, match=r"saved with the adapters a and b in them, without their scales;"):
        load_pipeline(tmp_path)


def save_unconditional(folder):
    unet = diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(8, 8), norm_num_groups=4, layers_per_block=1,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2, add_attention=False,
    )  # fmt: skip
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler()).save_pretrained(folder)
    return folder / "unet" / "diffusion_pytorch_model.safetensors"


def test_weights_that_are_missing_are_refused(tmp_path):
    file = save_unconditional(tmp_path / "saved")
    save_file({name: tensor for name, tensor in load_file(file).items() if "conv_in" not in name}, file)
    for kind in ("pipeline", "bare"):
        with pytest.raises(ZeusError, match=r"whose unet was saved without conv_in\.weight and 1 others"):
            load_pipeline(tmp_path / "saved")
        if kind == "pipeline":
            (tmp_path / "saved" / "model_index.json").unlink()


def test_a_whole_folder_loads(tmp_path):
    save_unconditional(tmp_path / "saved")
    assert isinstance(load_pipeline(tmp_path / "saved"), diffusers.DDPMPipeline)


def test_the_trace_has_the_active_adapter_and_the_manifest_names_it():
    pipeline = build_sd(unet=add_lora(tiny_unet()).eval())
    captured = capture(pipeline, Settings({"batch": 2, "height": 64, "width": 96, "prompt": 7}, {}, run=run_sd))
    example = captured.arguments.nest(captured.arguments.leaves)
    with torch.no_grad():
        got = trace_flat(captured).module()(*captured.examples)
        expected = pipeline.unet(**example)[0]
        for module in pipeline.unet.modules():
            if isinstance(module, Lora):
                module.active_adapters = []
        plain = pipeline.unet(**example)[0]
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert (got - plain).norm() > 1e-3 * plain.norm()


@pytest.mark.parametrize(("unet", "adapters"), [(tiny_unet(), {}), (add_lora(tiny_unet()), {"style": 0.5})])
def test_the_manifest_records_adapters(unet, adapters):
    captured = capture(
        build_sd(unet=unet), Settings({"batch": 2, "height": 64, "width": 96, "prompt": 7}, {}, run=run_sd)
    )
    graph = Graph(Precision.FP32)
    manifest = describe(captured, SizeRules({}), graph, model="m", prediction_type="epsilon")
    assert manifest.adapters == adapters
    assert (manifest.weights_sha256, manifest.adapters_sha256) == digest_weights(unet)


def test_an_adapter_leaves_the_digest_of_the_weights_as_it_is():
    unet = tiny_unet()
    plain, none = digest_weights(unet)
    weights, style = digest_weights(add_lora(unet))
    assert (weights, none) == (plain, "")
    with torch.no_grad():
        next(p for name, p in unet.named_parameters() if "lora" in name.lower()).add_(1e-3)
    assert digest_weights(unet) == (plain, digest_weights(unet)[1])
    assert digest_weights(unet)[1] not in ("", style)
