"""The precisions that a graph can have."""

from enum import Enum

import torch

from zeus_trt.errors import ZeusError

METADATA = "zeus_trt.precision"
"""Key of the precision among the metadata of an ONNX graph."""


class Precision(str, Enum):
    """What most of a graph's weights are: IEEE halves, bfloat16, or 8-bit numbers with scales."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"

    __str__ = str.__str__  # its value, as StrEnum of Python 3.11 has it

    @property
    def dtype(self) -> torch.dtype:
        """The torch dtype of these weights; E4M3 for fp8."""
        return _DTYPES[self]

    @classmethod
    def read(cls, name: str) -> "Precision":
        """The precision of that name.

        Raises:
            ZeusError: There is no such precision.
        """
        try:
            return cls(name)
        except ValueError:
            raise ZeusError(f"precision: got {name!r}; expected one of {', '.join(cls)}. Choose one of them.") from None

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Precision | None":
        """The precision whose weights have this dtype; None if no graph has them."""
        return next((precision for precision, own in _DTYPES.items() if own == dtype), None)


_DTYPES = {
    Precision.FP32: torch.float32,
    Precision.FP16: torch.float16,
    Precision.BF16: torch.bfloat16,
    Precision.INT8: torch.int8,
    Precision.FP8: torch.float8_e4m3fn,
}
FLOATS = (Precision.FP32, Precision.FP16, Precision.BF16)
"""Those that export writes."""
QUANTIZED = (Precision.INT8, Precision.FP8)
"""Those that `zeus-trt quantize` writes."""
