"""Tests that need a CUDA device; elsewhere they are skipped, with the reason."""

import pytest
import torch


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch sees none"))
