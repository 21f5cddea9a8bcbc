"""Whether Triton's Python backend and this NumPy agree on what an array is."""

from typing import Any

import numpy as np
import torch

from zeus_trt.errors import ZeusError


def check_numpy(pb_utils: Any) -> None:
    """Refuses a NumPy that the server was not built for: its arrays would have other values, and no error.

    Triton 2.51 was built for NumPy 1: under NumPy 2 all elements of its arrays are the first one.

    Args:
        pb_utils: The module ``triton_python_backend_utils``.

    Raises:
        ZeusError: An array came back with other values.
    """
    sent = [1, 2, 3]
    found = pb_utils.Tensor.from_dlpack("probe", torch.tensor(sent)).as_numpy().tolist()
    if found != sent:
        raise ZeusError(
            f"numpy: got {np.__version__}, with which this Triton's Python backend reads {sent} as {found}; expected "
            "one that it was built for. Install numpy<2 beside zeus-trt, or take a Triton that was built for this one."
        )
