"""The model ``denoiser`` for servers without a backend for its engine: the engine runs in Triton's Python backend."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.engines.choose import choose_engine
from zeus_trt.runtime.triton.numpy_check import check_numpy


class TritonPythonModel:
    """What Triton calls; ``parameters`` of the model's config name the engine."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Opens the engine of the bundle beside ``model.py``."""
        check_numpy(pb_utils)
        parameters = json.loads(args["model_config"])["parameters"]
        backend, precision = (parameters[name]["string_value"] for name in ("engine", "precision"))
        device = f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"
        bundle = Bundle.open(Path(args["model_repository"], args["model_version"], "bundle"))
        self._engine = choose_engine(bundle, backend, device, precision=precision)[0]
        self._inputs = [spec.name for spec in bundle.manifest.inputs]
        self._output = bundle.manifest.output.name

    def execute(self, requests: list[Any]) -> list[Any]:
        """One call of the engine for all requests that the batcher merged: they agree in all sizes but their rows."""
        columns = [self._read(name, requests) for name in self._inputs]
        try:
            # A request without others is not joined: where the batcher is off, inputs may have no rows.
            joined = [torch.cat(column) if len(column) > 1 else column[0] for column in columns]
            output = self._engine(**dict(zip(self._inputs, joined, strict=True))).cpu()
        except ZeusError as error:
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))) for _ in requests]
        parts = output.split([len(latents) for latents in columns[0]])
        return [pb_utils.InferenceResponse([pb_utils.Tensor(self._output, part.numpy())]) for part in parts]

    def finalize(self) -> None:
        """Gives the engine's memory back."""
        self._engine.close()

    def _read(self, name: str, requests: list[Any]) -> list[torch.Tensor]:
        tensors = [pb_utils.get_input_tensor_by_name(request, name) for request in requests]
        return [torch.from_numpy(tensor.as_numpy()) for tensor in tensors]
