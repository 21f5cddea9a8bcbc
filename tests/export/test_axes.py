"""Axes that move together, and axes that are products of others."""

from hypothesis import given
from hypothesis import strategies as st

from zeus_trt.export.axes import find_symbols, find_unit
from zeus_trt.runtime.bundle.tensor_spec import AREA

SETTINGS = ("batch", "height", "width", "frames")


def observe(sizes, base, varied):
    """Sizes of every axis over a base run and one run per setting."""
    runs = [dict(zip(SETTINGS, base, strict=True))]
    runs += [{**runs[0], name: value} for name, value in zip(SETTINGS, varied, strict=True)]
    return {slot: [size(**run) for run in runs] for slot, size in sizes.items()}


def test_axes_that_move_together_share_a_symbol():
    sizes = {("x", 0): [4, 6, 4], ("x", 1): [4, 4, 4], ("x", 2): [8, 8, 16], ("y", 0): [4, 6, 4]}
    symbols, slots = find_symbols(sizes, ("batch", "height"))
    assert slots == {("x", 0): "batch", ("x", 2): "height", ("y", 0): "batch"}
    assert [(symbol.name, moved, symbol.factors) for moved, symbol in symbols.items()] == [
        ("batch", (4, 6, 4), ()),
        ("height", (8, 8, 16), ()),
    ]


@given(st.data())
def test_products_are_found_whatever_the_sizes(data):
    base = data.draw(st.tuples(*[st.integers(2, 30).map(lambda size: 4 * size)] * 4))
    varied = [size + 4 * data.draw(st.integers(1, 9)) for size in base]
    sizes = {
        ("tokens", 0): lambda batch, height, width, frames: height * width * frames // 16,
        ("x", 0): lambda batch, **_: batch,
        ("x", 1): lambda height, **_: height,
        ("x", 2): lambda width, **_: width // 2,
        ("frames", None): lambda frames, **_: frames,
    }
    symbols, slots = find_symbols(observe(sizes, base, varied), SETTINGS)
    assert slots == {
        ("tokens", 0): "tokens", ("x", 0): "batch", ("x", 1): "height", ("x", 2): "width", ("frames", None): "frames",
    }  # fmt: skip
    assert [symbol.name for symbol in symbols.values()][-1] == "tokens"  # after its factors
    tokens = [*symbols.values()][-1]
    assert tokens.factors == ("height", "width", "frames")
    assert tokens.scale == "1/8"


@given(st.lists(st.integers(2, 50), min_size=4, max_size=4), st.lists(st.integers(1, 9), min_size=4, max_size=4))
def test_a_sum_is_no_product(base, steps):
    varied = [size + step for size, step in zip(base, steps, strict=True)]
    sizes = {
        ("x", 0): lambda height, **_: height,
        ("x", 1): lambda width, **_: width,
        ("y", 0): lambda height, width, **_: height + width,
    }
    symbols, slots = find_symbols(observe(sizes, base, varied), SETTINGS)
    assert slots["y", 0] == "tokens"
    assert [*symbols.values()][-1].factors == ()


def test_what_one_setting_moves_twice_is_a_multiple_or_has_a_number():
    sizes = {("x", 0): [4, 6], ("y", 0): [2, 3], ("z", 0): [5, 7]}
    symbols, slots = find_symbols(sizes, ("batch",))
    assert list(slots.values()) == ["batch", "batch_2", "batch_3"]
    assert [(symbol.factors, symbol.scale) for symbol in symbols.values()] == [
        ((), "1"), (("batch",), "1/2"), ((), "1"),
    ]  # fmt: skip


def test_nothing_moves():
    assert find_symbols({("x", 0): [4, 4]}, ("batch",)) == ({}, {})


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 20), st.sampled_from([1, 4, 8]), st.sampled_from([8, 16]))
def test_sizes_are_told_in_the_terms_of_the_pipeline(rows, columns, frames, rate, patch):
    """Height alone, frames with their first one, and tokens that height and width move together."""
    base = {"height": patch * rows, "width": patch * columns, "num_frames": rate * frames + 1}
    varied = {name: value + rate * patch for name, value in base.items()}

    def size(height, width, num_frames):
        return height // patch, (num_frames - 1) // rate + 1, height * width // patch**2

    runs = [size(**base), *(size(**{**base, name: value}) for name, value in varied.items())]
    sizes = {("x", axis): list(moving) for axis, moving in enumerate(zip(*runs, strict=True))}
    symbols, slots = find_symbols(sizes, list(varied))
    told = {symbol.name: find_unit(symbol, moved, base, varied) for moved, symbol in symbols.items()}
    height, moving, tokens = (told[slots["x", axis]] for axis in range(3))
    assert (height.setting, height.unit, height.offset) == ("height", str(patch), "0")
    assert (moving.setting, moving.unit, moving.offset) == ("num_frames", str(rate), str(1 - rate))
    if not tokens.factors:
        assert (tokens.setting, tokens.unit, tokens.offset) == (AREA, str(patch**2), "0")


def test_a_setting_that_is_no_number_has_no_unit():
    ((moved, prompt),) = find_symbols({("x", 0): [7, 11]}, ["prompt"])[0].items()
    assert find_unit(prompt, moved, {"prompt": "a cat"}, {"prompt": "a cat on a mat"}) is prompt


def test_a_side_that_shrinks_where_its_setting_grows_has_no_unit():
    """As in Marigold, which scales a picture until its longer side fits."""
    ((moved, width),) = find_symbols({("x", 0): [8, 4]}, ["width"])[0].items()
    assert find_unit(width, moved, {"width": 64}, {"width": 128}) is width
