"""Branches of a model's code on values: the graph has the side that was exported, and NaN for the other."""

from dataclasses import replace

import pytest
import torch
from golden_files import GOLDEN
from pipelines import FAMILIES

from zeus_trt.errors import ZeusError
from zeus_trt.export.border import Border
from zeus_trt.export.capture import Capture
from zeus_trt.export.flat import FlatDenoiser, export_capture, trace_flat
from zeus_trt.export.runs import record
from zeus_trt.export.selections import Selections
from zeus_trt.runtime import Manifest, Session, accelerate
from zeus_trt.runtime.bundle.branch import Branch
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec
from zeus_trt.runtime.engines.onnxruntime import OnnxRuntimeEngine
from zeus_trt.runtime.pipelines.arguments import flatten


class Net(torch.nn.Module):
    """Takes other ways for pictures of zeros and for texts with a large number."""

    def forward(self, sample, timestep, picture, text):
        output = sample * timestep[:, None]
        if torch.all(picture == 0):
            output = output * 2
        if text.max() > 2:
            output = output + 3
        return (output,)


class Moving(torch.nn.Module):
    def forward(self, sample, timestep, picture, text):
        return (sample * 2 if timestep.sum() > 0 else sample,)


class Sorting(torch.nn.Module):
    """Puts what a mask selects before the rest."""

    def forward(self, sample, timestep, picture, text):
        rows = [
            torch.cat([own[mask], torch.zeros_like(own[~mask]), mask[mask], ~mask[~mask]])
            for own, mask in zip(sample, text > 0, strict=True)
        ]
        return (torch.stack(rows),)


def describe(net, **changes):
    leaves = {
        "sample": torch.randn(2, 6), "timestep": torch.rand(2), "picture": torch.zeros(2, 5), "text": torch.rand(2, 6),
    }  # fmt: skip
    axes = {"sample": ("batch", "n"), "timestep": ("batch",), "picture": ("batch", 5), "text": ("batch", "n")}
    return Capture(
        component="unet", denoiser=net, inputs=tuple(TensorSpec(name, "float32", axes[name]) for name in axes),
        symbols=(SymbolSpec("batch", (2, 3)), SymbolSpec("n", (6, 8))), constants={}, guidance="none",
        guidance_factor=None, border=Border("sample", "timestep"), output_axes=("batch", "n"),
        arguments=flatten(leaves | changes),
    )  # fmt: skip


def test_the_graph_is_nan_where_an_input_asks_for_the_other_side(tmp_path):
    _, branches = export_capture(captured := describe(Net()), tmp_path / "graph.onnx")
    assert [(branch.inputs, branch.answer) for branch in branches] == [(("picture",), True), (("text",), False)]
    assert all(branch.origin.startswith("test_branches.py:") for branch in branches)
    engine = OnnxRuntimeEngine(tmp_path / "graph.onnx")
    inputs = {"sample": torch.randn(3, 8), "timestep": torch.rand(3), "picture": torch.zeros(3, 5)}
    inputs["text"] = torch.rand(3, 8)
    assert torch.equal(engine(**inputs), FlatDenoiser(captured)(*inputs.values()))
    for other in ({"picture": torch.ones(3, 5)}, {"text": torch.full((3, 8), 4.0)}):
        assert engine(**inputs | other).isnan().all()


def test_a_branch_on_what_changes_with_the_step_is_refused_by_its_line():
    with pytest.raises(
        ZeusError, match=r"branches on the values of timestep at test_branches.py:\d+; expected .*where"
    ):
        trace_flat(describe(Moving()))


def test_the_manifest_has_branches_only_where_there_are_some():
    manifest = Manifest.from_json((GOLDEN / "bundle" / "manifest.json").read_text())
    assert "branches" not in manifest.to_json()
    branch = Branch("model.py:1", ("picture",), True)
    assert Manifest.from_json(replace(manifest, branches=(branch,)).to_json()).branches == (branch,)


@pytest.mark.parametrize("mask", [[1, 0, 1, 1, 0], [0] * 5, [1] * 5])
def test_rows_that_masks_select_are_joined(mask):
    captured = describe(
        Sorting(), sample=torch.randn(1, 6), timestep=torch.rand(1), picture=torch.zeros(1, 5), text=torch.randn(1, 6)
    )
    captured = replace(
        captured,
        inputs=tuple(replace(spec, axes=(1, *spec.axes[1:])) for spec in captured.inputs),
        symbols=captured.symbols[1:],
    )
    arguments = torch.randn(1, 5), torch.rand(1), torch.zeros(1, 5), torch.tensor([mask]) - 0.5
    assert torch.equal(trace_flat(captured).module()(*arguments), Sorting()(*arguments)[0])


def test_a_selection_that_is_not_joined_is_selected_as_ever():
    rows, mask = torch.randn(4, 2), torch.tensor([True, False, True, False])
    with Selections():
        assert rows[mask].shape == (2, 2)
        assert torch.equal(torch.cat([rows[mask], rows[mask]]), torch.cat([rows[::2], rows[::2]]))
        assert torch.equal(2 - rows[mask], 2 - rows[::2])
        assert torch.equal(~mask[mask], torch.tensor([False, False]))


@pytest.mark.slow
def test_an_engine_of_videos_without_pictures_refuses_pictures(family_bundle):
    family = FAMILIES["hunyuan-video-1.5"]
    pipeline, bundle = family.make(), family_bundle("hunyuan-video-1.5")

    def run(one, steps):
        torch.manual_seed(0)
        return family.run(one, **family.base, steps=steps).frames

    with Session(bundle) as session:
        for ratio, steps, nfe in ((0, 5, 5), (2, 15, 9)):
            with accelerate(pipeline, ratio) as eager, accelerate(pipeline, ratio, engine=session) as fast:
                expected, got = run(eager, steps), run(fast, steps)
                assert fast.report.nfe == eager.report.nfe == nfe
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        call = record(pipeline, "transformer", family.settings)[0].arguments
        with accelerate(pipeline, engine=session) as fast, pytest.raises(ZeusError, match="the values of image_embeds"):
            fast.transformer(**call | {"image_embeds": torch.ones_like(call["image_embeds"])})
