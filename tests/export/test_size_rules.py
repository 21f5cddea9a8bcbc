"""Conditions on sizes in a model's code: each becomes a rule of the bundle, which is exact, or an error."""

import itertools
import math

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.border import Border
from zeus_trt.export.capture import Capture
from zeus_trt.export.flat import export_capture, trace_flat
from zeus_trt.export.graph import write_metadata
from zeus_trt.export.limits import read_rules
from zeus_trt.runtime.bundle.size_rules import check_sizes
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine
from zeus_trt.runtime.pipelines.arguments import flatten

BASE = {"batch": 2, "height": 24, "width": 16, "tokens": 7, "frames": 3}


class Net(torch.nn.Module):
    """Doubles its output where ``branch`` is true of its sizes."""

    def __init__(self, branch):
        super().__init__()
        self.branch = branch

    def forward(self, sample, timestep, text, frames=3):
        b, _, h, w = sample.shape
        output = sample * timestep[:, None, None, None] + text.mean()
        return (output * 2,) if self.branch(b, h, w, text.shape[1], frames) else (output,)


def describe(branch, **changes):
    """The call of a denoiser at ``BASE``, all of whose sizes vary."""
    base = {**BASE, **changes}
    b, h, w, t, f = base.values()
    leaves = {
        "sample": torch.randn(b, 4, h, w), "timestep": torch.rand(b), "text": torch.randn(b, t, 8), "frames": f,
    }  # fmt: skip
    axes = {"sample": ("batch", 4, "height", "width"), "timestep": ("batch",), "text": ("batch", "tokens", 8)}
    roles = {"sample": "latents", "timestep": "timestep", "text": "conditioning"}
    inputs = tuple(TensorSpec(name, "float32", axes[name], roles[name]) for name in axes)
    return Capture(
        component="unet", denoiser=Net(branch), inputs=(*inputs, TensorSpec("frames", "int64", (), "size", "frames")),
        symbols=tuple(SymbolSpec(name, (size, size + 8)) for name, size in base.items()), constants={}, guidance="none",
        guidance_factor=None, border=Border("sample", "timestep"), output_axes=axes["sample"],
        arguments=flatten(leaves),
    )  # fmt: skip


def check(function):
    def branch(*sizes):
        torch._check(function(*sizes))
        return True

    return branch


KINDS = {
    "landscape": lambda b, h, w, t, f: w > h,
    "portrait": lambda b, h, w, t, f: h > w,
    "aspect": lambda b, h, w, t, f: h / w <= 2 / 3,
    "weighted": lambda b, h, w, t, f: 3 * h <= 2 * w,
    "float": lambda b, h, w, t, f: h * 0.75 > w,
    "sum": lambda b, h, w, t, f: h + w + t > 32,
    "product": lambda b, h, w, t, f: h * w > 300,
    "power": lambda b, h, w, t, f: (h * w) ** 0.5 < 18,
    "parity of a product": lambda b, h, w, t, f: (h * w) % 2 == 0,
    "remainder of a sum": lambda b, h, w, t, f: (h + w) % 3 == 1,
    "remainder of an even sum": lambda b, h, w, t, f: (h + w) % 4 == 0,
    "remainder of a negative product": lambda b, h, w, t, f: -(h * w) % 32 > 0,
    "remainder of a negative size": lambda b, h, w, t, f: -t % 4 > 1,
    "divides": lambda b, h, w, t, f: h % w == 0,
    "odd": lambda b, h, w, t, f: t % 2 == 1,
    "unequal": lambda b, h, w, t, f: h != 20,
    "equal": lambda b, h, w, t, f: h == w,
    "one of": lambda b, h, w, t, f: h in (16, 20),
    "patches": lambda b, h, w, t, f: (h // 2) * (w // 2) > 64,
    "ceiling": lambda b, h, w, t, f: -(-h // 5) > 4,
    "largest": lambda b, h, w, t, f: torch.sym_max(h, w) > 20,
    "smallest": lambda b, h, w, t, f: torch.sym_min(h, w) * 2 > torch.sym_max(h, w),
    "difference": lambda b, h, w, t, f: abs(h - w) < 4,
    "rounded": lambda b, h, w, t, f: math.floor(h / w) == 1,
    "chain": lambda b, h, w, t, f: 10 < h < w * 3,
    "both": lambda b, h, w, t, f: h > w and t > 3,
    "either": lambda b, h, w, t, f: h > 64 or w > 8,
    "bits": lambda b, h, w, t, f: (h & 1) == 0,
    "batch": lambda b, h, w, t, f: b <= 3,
    "batch and text": lambda b, h, w, t, f: t > b,
    "text": lambda b, h, w, t, f: t <= 8,
    "integer": lambda b, h, w, t, f: f > 3,
    "integer and size": lambda b, h, w, t, f: f * h < w * 5,
    "checked": check(lambda b, h, w, t, f: h > w),
    "checked limit": check(lambda b, h, w, t, f: h <= 40),
}
GRID = [
    dict(zip(BASE, sizes, strict=True))
    for sizes in itertools.product((2, 3, 5), (8, 16, 20, 21, 24, 66), (8, 9, 16, 20, 24, 31), (3, 8, 9), (2, 3, 4))
]


def allows(rules, sizes):
    try:
        check_sizes(rules.symbols, rules.relations, sizes)
    except ZeusError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_no_size_that_takes_the_other_branch_is_allowed(kind):
    rules = read_rules(captured := describe(KINDS[kind]), trace_flat(captured))

    def run(sizes):
        try:
            return bool(KINDS[kind](*sizes.values()))
        except RuntimeError:  # what torch._check raises
            return None

    taken = run(BASE)
    wrong = [sizes for sizes in GRID if allows(rules, sizes) and run(sizes) != taken]
    refused = [sizes for sizes in GRID if not allows(rules, sizes)]
    assert allows(rules, BASE)
    assert not wrong
    assert refused
    narrower = {"either", "one of", "both", "chain"}  # several tests: the graph holds for those that were made
    assert kind in narrower or all(run(sizes) != taken for sizes in refused)


def test_what_every_size_satisfies_is_no_rule():
    captured = describe(lambda b, h, w, t, f: h * w > h and h + 2 > 3 and (2 * h) % 2 == 0 and b * h * w != 1)
    rules = read_rules(captured, trace_flat(captured))
    assert rules.relations == ()
    assert {(symbol.multiple_of, symbol.maximum) for symbol in rules.symbols} == {(1, None)}


def test_a_branch_that_only_changes_the_layout_or_logs_is_no_rule():
    def branch(b, h, w, t, f):
        x = torch.ones(3)
        if h > w:
            x = x.contiguous()
        if b < 64:
            x = x.contiguous()
        return False

    captured = describe(branch)
    assert read_rules(captured, trace_flat(captured)).relations == ()


def test_a_condition_that_no_manifest_holds_is_an_error_that_names_it():
    class Counting(Net):
        def forward(self, sample, timestep, text, frames=3):
            count = (text > 0).sum().item()
            torch._check(count < sample.shape[2] * 100)
            return (sample + torch.ones(count).sum(),)

    captured = describe(None)
    captured.denoiser.__class__ = Counting
    with pytest.raises(ZeusError, match=r"test_size_rules.py:\d+.* no size of an input"):
        read_rules(captured, trace_flat(captured))


def test_a_part_that_data_cut_is_no_rule():
    class Cutting(Net):
        def forward(self, sample, timestep, text, frames=3):
            count = (text > 0).sum(dtype=torch.int)
            return (sample + torch.cat([sample, sample], 2)[:, :, :count].sum(),)

    captured = describe(None)
    captured.denoiser.__class__ = Cutting
    assert read_rules(captured, trace_flat(captured)).relations == ()


def test_a_condition_that_torch_writes_twice_is_one_rule():
    rules = read_rules(captured := describe(lambda b, h, w, t, f: bool(f % 2)), trace_flat(captured))
    assert [str(relation) for relation in rules.relations] == ["frames % 2 > 0"]


def test_what_the_model_fixes_is_named_with_its_value():
    captured = describe(lambda b, h, w, t, f: math.gcd(h, w) == 8)
    words = r"got Net, whose code fixes height at 24 \(test_size_rules.py:\d+\) and width at 16 \(test_.*py:\d+\); exp"
    with pytest.raises(ZeusError, match=words):
        trace_flat(captured)


def test_a_branch_on_data_is_one_sentence(capsys):
    class Switching(Net):
        def forward(self, sample, timestep, text, frames=3):
            return (sample * 2 if timestep[0] > 0.5 else sample,)

    captured = describe(None)
    captured.denoiser.__class__ = Switching
    with pytest.raises(ZeusError, match=r"branches on the values of timestep at test_size_rules.py"):
        trace_flat(captured)
    assert capsys.readouterr() == ("", "")


def test_a_fault_of_the_exporter_is_one_sentence(tmp_path):
    class Peaking(Net):
        def forward(self, sample, timestep, text, frames=3):
            return (sample * timestep[:, None, None, None] + sample.amax(),)

    captured = describe(None)
    captured.denoiser.__class__ = Peaking
    with pytest.raises(ZeusError, match=r"onnx: got an operator that has no form in it \(Error when translating"):
        export_capture(captured, tmp_path / "graph.onnx")


def test_the_graph_itself_refuses_what_it_is_not_made_for(tmp_path):
    captured = describe(KINDS["landscape"])
    rules, _ = export_capture(captured, tmp_path / "graph.onnx")
    write_metadata(tmp_path / "graph.onnx", rules, "fp32")
    engine = OnnxRuntimeEngine(tmp_path / "graph.onnx", num_threads=1)

    def make(high, wide, channels=4):
        return {
            "sample": torch.randn(3, channels, high, wide), "timestep": torch.rand(3), "text": torch.randn(3, 5, 8),
            "frames": torch.tensor(4),
        }  # fmt: skip

    for high, wide in ((24, 16), (16, 16), (40, 24)):
        inputs = make(high, wide)
        expected = captured.denoiser(**inputs)[0]
        torch.testing.assert_close(engine(**inputs), expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ZeusError, match=r"height 16.*, width 24.*; expected width <= height.*test_size_rules.py:"):
        engine(**make(16, 24))
    with pytest.raises(ZeusError, match=r"sample: got the shape \(3, 5, 24, 16\); expected axes \(batch, 4,"):
        engine(**make(24, 16, channels=5))


def test_a_square_base_of_a_model_that_asks_for_squares_stays_square():
    captured = describe(lambda b, h, w, t, f: h == w, height=16)
    rules = read_rules(captured, trace_flat(captured))
    assert [str(relation) for relation in rules.relations] in (["height == width"], ["width == height"])
