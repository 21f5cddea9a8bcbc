"""Fixtures of the TensorRT double, for all tests of this folder."""

from tensorrt_double import captures, double, engine_file  # noqa: F401
