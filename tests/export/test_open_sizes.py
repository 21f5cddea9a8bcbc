"""Numbers that a model's code makes of sizes stay open, and rows that it goes through in Python are one row."""

import functools
import sys
import threading

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from zeus_trt.export.graph import write_graph
from zeus_trt.export.open_sizes import keep_sizes_open
from zeus_trt.runtime.pipelines.rows import Rows, read_prediction

DYNAMIC = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}


@functools.lru_cache
def double(size):
    return 2 * size


class Model(torch.nn.Module):
    def forward(self, x):
        length, rows = int(x.shape[1]), len(x)
        assert isinstance(length, int)
        assert int("3") == 3
        steps = torch.linspace(-length / 2, length / 2, length)
        longest = max(rows, length, 2) + min([rows, length])
        chosen = x[0][torch.nonzero(x[0] > 0).flatten()]
        padded = pad_sequence([x[:, 0], x[0]], batch_first=True)
        assert len(set([rows, length])) == len(set((3, 4, 3))) == 2  # noqa: C405
        longest = longest + double(length) + float(length) / 2
        places = torch.arange(length, dtype=torch.int32)
        grid = torch.zeros(length, length)
        grid[:rows, :rows].fill_diagonal_(7)
        grid = torch.add(grid, grid, alpha=np.sqrt(x[:, :1].numel() / x[:, :4].numel()))
        return x[:, places] * torch.as_tensor(length) + steps + longest + chosen.sum() + padded.sum() + grid.sum()


def test_sizes_stay_open(tmp_path):
    model, x = Model(), torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    with keep_sizes_open(model):
        program = torch.export.export(model, (x,), dynamic_shapes=(DYNAMIC,), strict=False)
    write_graph(program, ["x"], [("rows", "length")] * 2, tmp_path / "graph.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "graph.onnx"))
    for given in (x, torch.linspace(-2, 3, 4 * 9).reshape(4, 9)):
        (found,) = session.run(None, {"x": given.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(given), rtol=1e-5, atol=1e-5)
    assert double.cache_info().currsize == 2  # of the model itself, at the two sizes; nothing of the trace


class Resized(torch.nn.Module):
    """Rounds sizes to rows as EasyAnimate and HunyuanVideo do: up by a negative quotient, to the nearest, a root."""

    def forward(self, x):
        length = x.shape[1]
        counts = [-(-length // 3), round(length * 3 / 4), round(length / 2), int(length / 3), int(length**0.5)]
        return x[:, 0].sum() + sum(place * x.new_ones(count).sum() for place, count in enumerate(counts, 1))


def test_rounded_sizes_stay_open(tmp_path):
    model, path = Resized(), tmp_path / "graph.onnx"
    x = torch.ones(2, 9)
    with keep_sizes_open(model):
        program = torch.export.export(model, (x,), dynamic_shapes=(DYNAMIC,), strict=False)
    write_graph(program, ["x"], [("rows", "length"), ()], path)
    session = onnxruntime.InferenceSession(str(path))
    for length in (5, 7, 9, 14, 16, 25):
        x = torch.ones(3, length)
        assert session.run(None, {"x": x.numpy()})[0] == model(x)


class Failing(torch.nn.Module):
    def forward(self, x):
        raise ValueError(f"{int is not NUMBER} {isinstance(int(x.shape[1]), int)}")


class Inherits(Failing):
    pass


NUMBER, min = int, min  # a file that has a name itself keeps it


def test_files_are_as_before_after_an_error_and_inside_of_another_block():
    file, before = sys.modules[__name__], dict(globals())
    with keep_sizes_open(Inherits()):
        with pytest.raises(ValueError, match="True True"), keep_sizes_open(Inherits()):
            Inherits()(torch.ones(2, 3))
        assert (file.len([1]), file.min is before["min"], file.double is before["double"]) == (1, True, False)
    assert dict(globals()) == before
    with pytest.raises(ValueError, match="True True"), keep_sizes_open(Inherits()):
        Inherits()(torch.ones(2, 3))
    assert dict(globals()) == before
    with pytest.raises(ValueError, match="False True"):
        Inherits()(torch.ones(2, 3))


def test_another_thread_runs_the_same_file_and_waits_with_its_own_block():
    found, has_entered = [], threading.Event()

    def run():
        found.append((set([3, 3]), int("3"), float(2), max(1, 2), double(4), double.cache_info().hits))  # noqa: C405
        has_entered.set()
        with keep_sizes_open(Model()):
            found.append("second")

    double.cache_clear()
    double(4)
    with keep_sizes_open(Model()):
        thread = threading.Thread(target=run)
        thread.start()
        assert has_entered.wait(60)
        assert found == [({3}, 3, 2.0, 2, 8, 1)]
    thread.join(60)
    assert found[1:] == ["second"]
    assert not {"len", "int", "float", "set", "max"} & globals().keys()


def test_a_list_with_a_tensor_per_row_is_one_row_at_a_time():
    rows = Rows(frozenset({"x", "shapes"}), frozenset({"t"}), is_one=True)
    given = {"x": [torch.ones(2, 3), torch.zeros(2, 4)], "shapes": [(1, 2), (3, 4)], "t": torch.arange(2.0), "k": None}
    taken = rows.flatten(given, 1)
    assert taken.leaves["x"].shape == (1, 2, 4)
    assert (taken.leaves["shapes.0.0"], taken.leaves["shapes.0.1"]) == (3, 4)
    assert taken.leaves["t"].equal(torch.tensor([1.0]))
    restored = rows.restore(taken.nest(taken.leaves))
    assert [tensor.shape for tensor in restored["x"]] == [(2, 4)]
    assert read_prediction([restored["x"]]).shape == (1, 2, 4)
