"""Digests of a denoiser's weights in a graph's precision."""

import diffusers
import pytest
import torch
from tiny_unets import tiny_unet

from zeus_trt.export.precision import cast_module
from zeus_trt.runtime.bundle.manifest import Graph
from zeus_trt.runtime.bundle.precision import Precision
from zeus_trt.runtime.pipelines.weights_digest import digest_weights, may_digest


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("keep", [(), ("down_blocks.0", "*.resnets.0")])
def test_the_digest_of_a_module_in_a_precision_is_that_of_the_cast_copy(precision, keep):
    unet, graph = tiny_unet(), Graph(Precision(precision), keep)
    unet._keep_in_fp32_modules = ["time_embedding"]
    cast = cast_module(unet, graph.precision.dtype, keep)
    assert digest_weights(unet, graph) == digest_weights(cast) != digest_weights(unet)


def test_the_layout_in_memory_does_not_matter():
    unet = tiny_unet()
    assert digest_weights(unet) == digest_weights(unet.to(memory_format=torch.channels_last))


def test_offloaded_weights_cannot_be_read():
    assert may_digest(tiny_unet())
    with torch.device("meta"):
        assert not may_digest(diffusers.UNet2DModel(block_out_channels=(32, 64, 64, 64)))
