"""From a denoiser to an ONNX graph."""

import contextlib
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch

from zeus_trt.export.model import Model
from zeus_trt.runtime.manifest import OUTPUT_NAME

OPSET = 20
EXAMPLE_BATCH = 2  # a batch of 1 is specialised by torch.export


class FlatDenoiser(torch.nn.Module):
    """The denoiser as a function of positional tensors that returns one tensor.

    Args:
        denoiser: The user's module; used as it is.
        names: Its keyword for each positional tensor.
    """

    def __init__(self, denoiser: torch.nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.denoiser = denoiser
        self.names = names

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.denoiser(**dict(zip(self.names, tensors, strict=True)))[0]


def example_inputs(model: Model, batch: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random inputs: latents, then timestep (batch,) with other values per row, then labels."""
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    size = config["sample_size"]
    height, width = size if isinstance(size, list) else (size, size)
    latents = torch.randn(batch, config["in_channels"], height, width, generator=generator)
    inputs = {model.latents_name: latents, "timestep": torch.rand(batch, generator=generator) * 999}
    if model.num_labels:
        inputs["class_labels"] = torch.randint(model.num_labels, (batch,), generator=generator)
    return inputs


def export_onnx(denoiser: torch.nn.Module, inputs: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes ``path`` and its weights ``path.data``; every input's first axis is dynamic.

    Args:
        denoiser: A module in eval mode; its first output is the model output.
        inputs: Example inputs by name, batch of at least 2.
        path: Where the graph goes.
    """
    batch = torch.export.Dim("batch")
    with quiet(), torch.no_grad():
        program = torch.onnx.export(
            FlatDenoiser(denoiser, tuple(inputs)).eval(),
            tuple(inputs.values()),
            dynamo=True,
            dynamic_shapes=(tuple({0: batch} for _ in inputs),),
            input_names=list(inputs),
            output_names=[OUTPUT_NAME],
            opset_version=OPSET,
            verbose=False,
        )
    assert program is not None
    for node in program.model.graph.all_nodes():
        node.metadata_props.clear()  # stack traces: paths of this machine, and half of the file
    program.save(path, external_data=True)


@contextlib.contextmanager
def quiet():
    """Keeps the exporter's own progress and warnings off the terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
