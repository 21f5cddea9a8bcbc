"""What the tests of the export share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The test workers share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
