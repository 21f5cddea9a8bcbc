"""Fixtures of the doubles, for all tests of this folder."""

from aot_double import engines, home, loaded  # noqa: F401
from tensorrt_double import captures, double, engine_file  # noqa: F401
