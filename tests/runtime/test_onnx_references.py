"""External data of a graph is found wherever onnx may keep a tensor."""

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_bundle import make_graph

from zeus_trt.runtime.bundle.onnx_references import list_references


def make_tensor(location: str) -> TensorProto:
    tensor = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in (("offset", "0"), ("location", location), ("length", "4")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


def make_attribute(name: str, **fields) -> onnx.AttributeProto:
    return onnx.AttributeProto(name=name, **fields)


def test_all_places_are_seen(tmp_path):
    model = make_graph("weights")
    inner = helper.make_graph([], "inner", [], [], [make_tensor("inner")])
    deep = helper.make_graph([helper.make_node("If", [], [])], "deep", [], [])
    deep.node[0].attribute.append(make_attribute("body", g=inner))
    sparse = onnx.SparseTensorProto(values=make_tensor("values"), indices=make_tensor("indices"), dims=[1])
    node = model.graph.node.add(op_type="Constant")
    node.attribute.extend(
        [
            make_attribute("a", t=make_tensor("attribute")),
            make_attribute("b", tensors=[make_tensor("one of many")]),
            make_attribute("c", graphs=[deep]),
            make_attribute("d", sparse_tensor=sparse),
            make_attribute("e", sparse_tensors=[sparse]),
        ]
    )
    model.graph.sparse_initializer.add().CopyFrom(
        onnx.SparseTensorProto(values=make_tensor("sparse values"), indices=make_tensor("sparse indices"))
    )
    function = model.functions.add(name="f")
    function.node.add(op_type="Constant").attribute.append(make_attribute("t", t=make_tensor("function")))
    function.attribute_proto.append(make_attribute("t", t=make_tensor("default of a function")))
    training = model.training_info.add()
    training.initialization.initializer.append(make_tensor("initialization"))
    training.algorithm.initializer.append(make_tensor("algorithm"))
    (tmp_path / "graph.onnx").write_bytes(model.SerializeToString())
    assert list_references(tmp_path / "graph.onnx") == {
        "weights", "inner", "values", "indices", "attribute", "one of many", "sparse values", "sparse indices",
        "function", "default of a function", "initialization", "algorithm",
    }  # fmt: skip


def test_a_graph_with_its_weights_inside_has_none(tmp_path):
    model = make_graph(None)
    model.graph.initializer.append(
        numpy_helper.from_array(numpy_helper.to_array(model.graph.initializer[0]), "location")
    )
    (tmp_path / "graph.onnx").write_bytes(model.SerializeToString())
    assert list_references(tmp_path / "graph.onnx") == set()


def test_two_halves_of_a_graph_are_one(tmp_path):
    """A reader of protocol buffers merges a message that comes twice."""
    halves = make_graph("first").SerializeToString() + make_graph("second").SerializeToString()
    (tmp_path / "graph.onnx").write_bytes(halves)
    assert list_references(tmp_path / "graph.onnx") == {"first", "second"}


def test_an_entry_may_come_in_any_order_and_length(tmp_path):
    """The last key and the last value count; numbers may be written with more bytes than they need."""
    entry = b"\x12\x01b" + b"\x0a\x01x" + b"\x12\x83\x00out" + b"\x8a\x00\x88\x00location"
    tensor = b"\x6a" + bytes([len(entry)]) + entry
    graph = b"\x2a" + bytes([len(tensor)]) + tensor
    (tmp_path / "graph.onnx").write_bytes(b"\x3a" + bytes([len(graph)]) + graph)
    assert (
        onnx.load(tmp_path / "graph.onnx", load_external_data=False).graph.initializer[0].external_data[0].value
        == "out"
    )
    assert list_references(tmp_path / "graph.onnx") == {"out"}


@pytest.mark.parametrize(
    "content",
    [
        b"\x3a",
        b"\x3a\x05a",
        b"\x3b",
        b"\xff" * 20,
        b"\x3a" + b"\xff" * 9 + b"\x01",
        b"\x09abc",
        b"\xba\x80\x80\x80\x80\x01\x00",  # a tag of more than 32 bits: some readers drop the first ones
    ],
)
def test_what_is_no_graph_is_refused(tmp_path, content):
    (tmp_path / "graph.onnx").write_bytes(content)
    with pytest.raises(ValueError, match=r"cut off|longer|too long|unknown kind"):
        list_references(tmp_path / "graph.onnx")


def test_graphs_in_graphs_have_a_limit(tmp_path):
    content = b""
    for _ in range(100):
        for tag in (b"\x32", b"\x2a", b"\x0a"):  # graph in attribute in node
            size = len(content)
            content = tag + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content
    size = len(content)
    (tmp_path / "graph.onnx").write_bytes(
        b"\x3a" + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content
    )
    with pytest.raises(ValueError, match="deeper than 64"):
        list_references(tmp_path / "graph.onnx")
