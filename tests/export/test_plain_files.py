"""Weights with a second name, which the onnx package refuses."""

import os

import onnx
import pytest
from small_bundle import GRAPH, write_bundle

from zeus_trt.export.plain_files import without_links


def link_symbolically(file, second):
    file.rename(second)
    file.symlink_to(second)


@pytest.mark.parametrize("link", [os.link, link_symbolically])
def test_linked_weights_are_read_from_a_copy(tmp_path, link):
    graph, scratch = write_bundle(tmp_path / "bundle") / GRAPH, tmp_path / "scratch"
    scratch.mkdir()
    with without_links(graph, scratch) as plain:
        assert plain == graph
        expected = onnx.load(plain)
    link(graph.with_name(f"{graph.name}.data"), tmp_path / "second")
    with pytest.raises(onnx.checker.ValidationError):
        onnx.load(graph)
    with without_links(graph, scratch) as plain:
        assert onnx.load(plain) == expected
        onnx.checker.check_model(str(plain))
    assert not any(scratch.iterdir())
