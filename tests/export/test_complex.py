"""Complex numbers of a model become pairs of real ones."""

import onnxruntime
import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.complex_numbers import make_real
from zeus_trt.export.graph import write_graph

DYNAMIC = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
X = torch.linspace(-2, 2, 3 * 5 * 4).reshape(3, 5, 4)
OTHER = torch.linspace(-1, 3, 2 * 8 * 4).reshape(2, 8, 4)


def make_turns(count):
    angles = torch.outer(torch.arange(count).float(), torch.tensor([1.0, 0.5]))
    return torch.polar(torch.ones_like(angles), angles)


def to_complex(x):
    return torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))


def to_real(z):
    return torch.view_as_real(z).flatten(2)


class Tables(torch.nn.Module):
    """Reads a row per axis of a kept table, as Lumina 2 does, and turns pairs of features, as Qwen-Image does."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("turns", make_turns(16))
        self.more = make_turns(16).to(torch.complex128)

    def forward(self, x):
        length = x.shape[1]
        places = torch.arange(length)[None, :, None].repeat(1, 1, 2)
        read = torch.gather(self.turns.unsqueeze(0), 1, places)
        joined = torch.cat([read[:, : length - 1], self.more[None, -1:]], dim=1)
        kept = torch.zeros(1, length, 2, dtype=torch.complex64)
        kept[:, :length] = joined
        return to_real(to_complex(self.linear(x)) * kept)


class Rule(torch.nn.Module):
    def __init__(self, rule):
        super().__init__()
        self.rule = rule

    def forward(self, x):
        return self.rule(to_complex(x), make_turns(x.shape[1]))


RULES = {
    "product": lambda z, w: to_real(z * w),
    "quotient": lambda z, w: to_real(z / w),
    "quotient of a real number": lambda z, w: to_real(z / 2 + 3 / (w + 2)),
    "conjugate": lambda z, w: to_real(z * w.conj()),
    "exponential": lambda z, w: to_real(torch.exp(z * 0.1) * w),
    "scalars": lambda z, w: to_real((2 + 1j) * z - 1j + w * 3),
    "join": lambda z, w: to_real(torch.complex(z.real, w.imag.expand_as(z.real))),
    "real result": lambda z, w: torch.stack([z.abs(), (z * w).angle(), z.real, w.imag.expand_as(z.real)], -1),
    "matrices": lambda z, w: to_real(z @ w.mT @ w),
    "places": lambda z, w: to_real(torch.where(z.real > 0, z.flip(1), w.roll(1, 0)[None]).transpose(0, 1)),
    "parts": lambda z, w: to_real(torch.stack(w.split([1, w.shape[0] - 1])[1].unbind(1), 1).repeat(1, 1, 1)),
    "sums": lambda z, w: to_real((z.cumsum(1) - z.sum(1, keepdim=True)) * w.sum(0)),
}


def attend(z, w):
    """Turns heads where they are behind an axis of tokens in memory, as AnyFlow does."""
    heads = torch.view_as_real(z).flatten(2).unflatten(2, (2, 2)).transpose(1, 2)
    turned = torch.view_as_real(torch.view_as_complex(heads.unflatten(3, (1, 2))) * w[:, :1]).flatten(3)
    return torch.nn.functional.scaled_dot_product_attention(turned, turned, heads).transpose(1, 2).flatten(2)


RULES["strides"] = attend


def trace(model):
    return torch.export.export(model.eval(), (X,), dynamic_shapes=(DYNAMIC,), strict=False)


@pytest.mark.parametrize("name", RULES)
def test_an_operator_is_the_same_in_real_numbers(name):
    model = Rule(RULES[name])
    program = trace(model)
    real = make_real(program)
    assert not any(is_complex(value.meta.get("val")) for value in real.graph.nodes)
    for x in (X, OTHER):
        torch.testing.assert_close(real.module()(x), model(x), rtol=1e-5, atol=1e-6)
    real.run_decompositions({})
    assert program.module()(X).equal(model(X))  # it was not changed


def is_complex(value):
    return isinstance(value, torch.Tensor) and value.is_complex()


@torch.inference_mode()
def test_tables_of_complex_numbers_become_onnx(tmp_path):
    torch.manual_seed(0)
    model, path = Tables(), tmp_path / "graph.onnx"
    write_graph(trace(model), ["x"], [("rows", "length", 4), ("rows", "length", 4)], path)
    session = onnxruntime.InferenceSession(str(path))
    for x in (X, OTHER):
        (found,) = session.run(None, {"x": x.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), model(x), rtol=1e-5, atol=1e-6)
    assert model.turns.is_complex()


def test_a_real_model_is_not_touched():
    program = trace(torch.nn.Linear(4, 4))
    assert make_real(program) is program


def test_an_operator_without_a_rule_is_refused_by_its_line(tmp_path):
    model = Rule(lambda z, w: to_real(torch.special.expit(z) * w))
    with pytest.raises(
        ZeusError, match=r"special_expit\S* on complex numbers at test_complex\.py:\d+; expected an operator"
    ) as caught:
        write_graph(trace(model), ["x"], [("rows", "length", 4)] * 2, tmp_path / "graph.onnx")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_complex_input_is_refused():
    model = Rule(lambda z, w: z)
    model.forward = lambda z: torch.view_as_real(z)
    program = torch.export.export(model, (torch.view_as_complex(X.reshape(3, 5, 2, 2)).clone(),), strict=False)
    with pytest.raises(ZeusError, match="got a complex input, z; expected real"):
        make_real(program)
    model.forward = lambda x: to_complex(x)
    with pytest.raises(ZeusError, match="got a complex output; expected real"):
        make_real(torch.export.export(model, (X,), strict=False))
