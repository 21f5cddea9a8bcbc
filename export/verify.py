"""Comparing an exported graph with the eager model."""

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.export.model import Model
from zeus_trt.export.onnx import example_inputs
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.manifest import Verification

BATCHES = (1, 3, 4)  # none of them is the batch of the export
TOLERANCE = 1e-4


def verify(model: Model, engine: Denoiser, backend: str, tolerance: float = TOLERANCE) -> tuple[Verification, ...]:
    """Runs engine and eager model on the same inputs, with other timesteps in every row.

    Args:
        model: The eager reference.
        engine: What was exported.
        backend: Name of the engine, for the record.
        tolerance: Largest ``|engine - eager| / |eager|`` (Euclidean norms) that is accepted.

    Returns:
        One record per batch size.

    Raises:
        ZeusError: An output is not finite, or the error is above ``tolerance``.
    """
    records = []
    for batch in BATCHES:
        inputs = example_inputs(model, batch, seed=batch)
        with torch.inference_mode():
            expected = model.denoiser(**inputs)[0]
        got = engine(**inputs)
        for name, output in (("eager model", expected), (backend, got)):
            if not torch.isfinite(output).all():
                raise ZeusError(
                    f"verification: got non-finite values from the {name} at batch {batch}; expected finite ones. "
                    "Check the weights."
                )
        difference = got - expected
        relative = float(difference.norm() / expected.norm().clamp_min(1e-12))
        if relative > tolerance:
            raise ZeusError(
                f"verification: got a relative error of {relative:.2e} to the eager model on {backend} at batch "
                f"{batch}; expected at most {tolerance:.0e}. Report the model, or raise --tolerance if you accept it."
            )
        records.append(Verification(backend, tuple(got.shape), "float32", float(difference.abs().max()), relative))
    return tuple(records)
