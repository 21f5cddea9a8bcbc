"""The optimisation profile: from sizes asked for to shapes of inputs."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zeus_trt.errors import ZeusError
from zeus_trt.export.profile import SizeRange, make_profile
from zeus_trt.runtime.bundle.engine_profile import ShapeRange, check_shapes
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.engines.named_inputs import measure

IMAGE = {"height": SizeRange(16, 32, 64), "width": SizeRange(16, 32, 48)}


def describe(guidance="batched", **changes):
    """The manifest of a transformer whose tokens are a quarter of height x width, per image."""
    inputs = (
        TensorSpec("hidden_states", "float32", ("batch", 4, "height", "width"), "latents"),
        TensorSpec("timestep", "float32", ("batch",), "timestep"),
        TensorSpec("img_ids", "float32", ("tokens", 3), "size"),
    )
    symbols = (
        SymbolSpec("batch", (2, 4)),
        SymbolSpec("height", (16, 32), multiple_of=2),
        SymbolSpec("width", (16, 24), multiple_of=2, maximum=64),
        SymbolSpec("tokens", (64, 192), factors=("height", "width"), scale="1/4"),
    )
    return Manifest(
        "model", "transformer", "Toy", {}, "", "epsilon", inputs, TensorSpec("model_output", "float32", ()), symbols,
        None, (), {}, guidance=guidance, **changes,
    )  # fmt: skip


def test_guidance_doubles_the_batch_but_not_the_smallest():
    profile = make_profile(describe(), IMAGE | {"batch": SizeRange(1, 2, 3)})
    assert profile["hidden_states"] == ShapeRange((1, 4, 16, 16), (4, 4, 32, 32), (6, 4, 64, 48))
    assert profile["timestep"] == ShapeRange((1,), (4,), (6,))


@pytest.mark.parametrize(
    ("manifest", "guidance"),
    [(describe(), False), (describe(guidance="sequential"), None), (describe(guidance="embedded"), None)],
)
def test_one_call_per_branch_does_not(manifest, guidance):
    profile = make_profile(manifest, {"batch": SizeRange(1, 2, 3)}, guidance)
    assert profile["timestep"] == ShapeRange((1,), (2,), (3,))


def test_products_follow_from_their_factors():
    assert make_profile(describe(), IMAGE)["img_ids"] == ShapeRange((64, 3), (256, 3), (768, 3))


def test_an_integer_that_is_a_size_has_a_range_of_values():
    manifest = describe()
    integer = SimpleNamespace(name="rows", axes=(), value="height")
    profile = make_profile(Manifest(**{**vars(manifest), "inputs": (*manifest.inputs, integer)}), IMAGE)
    assert profile["rows"] == ShapeRange((16,), (32,), (64,))
    inputs = {"rows": torch.tensor(80), "timestep": torch.zeros(2)}
    assert measure(inputs, profile) == {"rows": (80,), "timestep": (2,)}


def test_sizes_that_nobody_asks_for_are_those_of_the_export():
    assert make_profile(describe())["hidden_states"] == ShapeRange((1, 4, 16, 16), (2, 4, 16, 16), (8, 4, 32, 24))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"depth": SizeRange(1, 1, 1)}, "ranges: got depth; expected batch, height, width"),
        ({"tokens": SizeRange(1, 1, 1)}, "ranges: got tokens"),
        ({"height": SizeRange(16, 64, 32)}, "height: got 16, 64, 32; expected 1 <= smallest <= best <= largest"),
        ({"batch": SizeRange(0, 1, 1)}, "batch: got 0, 1, 1"),
        ({"height": SizeRange(16, 16, 17)}, "height: got 17; expected a multiple of 2. Use 16"),
        ({"width": SizeRange(16, 16, 128)}, "width: got 128; expected 64 or less"),
    ],
)
def test_bad_ranges(ranges, message):
    with pytest.raises(ZeusError, match=message.replace("(", r"\(")):
        make_profile(describe(), ranges)


def test_a_product_that_is_no_whole_number():
    manifest = describe()
    odd = SymbolSpec("tokens", (1,), factors=("height", "width"), scale="1/1024")
    with pytest.raises(ZeusError, match="tokens: got 1/4 from 1/1024 x height x width; expected a whole number"):
        make_profile(Manifest(**{**vars(manifest), "symbols": (*manifest.symbols[:3], odd)}), IMAGE)


@given(st.integers(1, 9), st.integers(8, 40), st.integers(8, 40))
def test_a_request_is_taken_exactly_if_it_lies_in_the_range(images, rows, columns):
    profile = make_profile(describe(), IMAGE | {"batch": SizeRange(1, 2, 3)})
    shapes = {
        "hidden_states": (2 * images, 4, 2 * rows, 2 * columns),
        "timestep": (2 * images,),
        "img_ids": (rows * columns, 3),
    }
    if images <= 3 and rows <= 32 and columns <= 24:
        check_shapes(profile, shapes)
    else:
        with pytest.raises(ZeusError, match="expected"):
            check_shapes(profile, shapes)


def test_a_request_outside_is_refused_in_words():
    profile = {"sample": ShapeRange((1, 4, 16, 16), (2, 4, 16, 16), (4, 4, 32, 16))}
    axes = {"sample": ("batch", 4, "height", 16)}
    with pytest.raises(ZeusError, match=r"batch 6 \(guidance doubles the batch: 2 x 3 = 6\); expected 1\.\.4"):
        check_shapes(profile, {"sample": (6, 4, 16, 16)}, axes)
    with pytest.raises(ZeusError, match=r"sample: got batch 5; expected 1\.\.4"):
        check_shapes(profile, {"sample": (5, 4, 16, 16)}, axes)
    with pytest.raises(ZeusError, match=r"sample: got height 40; expected 16\.\.32"):
        check_shapes(profile, {"sample": (2, 4, 40, 16)}, axes)
    height = SymbolSpec("height", (16, 32), setting="height", unit="8")
    with pytest.raises(
        ZeusError, match=r"got height 40 \(320 pixels\); expected 16 \(128 pixels\)\.\.32 \(256 pixels\)"
    ):
        check_shapes(profile, {"sample": (2, 4, 40, 16)}, axes, [height])
    with pytest.raises(ZeusError, match="sample: got axis 3 24; expected 16, which"):
        check_shapes(profile, {"sample": (2, 4, 16, 24)}, axes)
    with pytest.raises(ZeusError, match="Pass a tensor with 4 axes"):
        check_shapes(profile, {"sample": (2, 4, 16)})
    with pytest.raises(ZeusError, match="Pass each of them by name"):
        check_shapes(profile, {"latents": (2, 4, 16, 16)})


def test_sizes_in_the_terms_of_the_pipeline():
    tokens = SymbolSpec("tokens", (4096,), setting="height x width", unit="256")
    assert tokens.describe(4096) == "4096 (1024x1024 pixels)"
    assert tokens.describe(24) == "24 (6144 pixels)"
    assert SymbolSpec("frames", (3,), setting="num_frames", unit="4", offset="-3").describe(21) == "21 (num_frames 81)"
    assert SymbolSpec("prompt", (7,), setting="prompt").describe(7) == "7"
    assert SymbolSpec("height", (8,)).describe(8) == "8"
