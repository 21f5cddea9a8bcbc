"""A graph takes no size that the eager model's tables of positions do not reach."""

from functools import partial

import pytest
import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.agreement import Case, compare
from zeus_trt.export.reach import verify_in_reach
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec

SYMBOLS = (SymbolSpec("rows", (2, 3)), SymbolSpec("height", (8, 12, 16)), SymbolSpec("width", (8, 12)))
RULES = SizeRules({"x": ("rows", "height", "width")}, symbols=SYMBOLS)


class Placed(torch.nn.Module):
    """Adds a learned position to each row of a picture."""

    def __init__(self, places):
        super().__init__()
        self.places = torch.nn.Embedding(places, 1)

    def forward(self, x):
        return (x + self.places(torch.arange(x.shape[1])),)


def reach(places):
    model = Placed(places)
    cases = [Case({"x": x}, {"x": x}) for x in (torch.ones(3, *size) for size in ((8, 8), (12, 12), (16, 8), (24, 8)))]
    verify = partial(compare, model, lambda x: model(x)[0].detach(), backend="double")
    return verify_in_reach(
        RULES, cases[0].inputs, lambda rules: (case for case in cases if rules.allow(case.inputs)), verify
    )


@pytest.mark.parametrize(("places", "largest", "count"), [(24, None, 4), (20, 16, 3), (14, 12, 2), (10, 8, 1)])
def test_sizes_end_where_the_model_refuses_more(places, largest, count):
    rules, records = reach(places)
    assert [symbol.maximum for symbol in rules.symbols][:2] == [None, largest]
    assert len(records) == count
    assert all(record.shape[1] <= (largest or 24) for record in records)


def test_a_model_that_refuses_every_size_is_an_error():
    with pytest.raises(ZeusError, match=r"got IndexError from the eager model at latents \(3, 8, 8\)"):
        reach(4)
