"""Conditions on sizes that have no value at some of them."""

import sympy
from torch.utils._sympy.functions import Mod

from zeus_trt.export.bounds import Bounds, narrow

HEIGHT = sympy.Symbol("height", integer=True, positive=True)
UNEVEN = sympy.Eq(Mod(32, Mod(HEIGHT, 32)), 0)


def test_a_remainder_of_a_remainder_stays_a_condition():
    bounds = Bounds(smallest={HEIGHT: 2})
    assert narrow(bounds, [UNEVEN]) == [UNEVEN]
    assert not bounds.multiples


def test_a_condition_without_a_value_at_any_size_stays():
    bounds = Bounds(smallest={HEIGHT: 2}, multiples={HEIGHT: 32})
    assert narrow(bounds, [UNEVEN]) == [UNEVEN]
