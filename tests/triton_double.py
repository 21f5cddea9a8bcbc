"""A double of ``triton_python_backend_utils``, the module that Triton gives its models: no server is behind it."""

import json
import sys
from types import ModuleType

import numpy as np
import torch

FINAL = 1


class Tensor:
    def __init__(self, name, array):
        self._name, self._array = name, np.asarray(array)

    @classmethod
    def from_dlpack(cls, name, tensor):
        return cls(name, tensor.numpy())

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array

    def to_dlpack(self):
        return torch.from_numpy(self._array).__dlpack__()


class TritonError:
    def __init__(self, text):
        self._text = text

    def message(self):
        return self._text


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.tensors, self._error = {tensor.name(): tensor for tensor in output_tensors}, error

    def has_error(self):
        return self._error is not None

    def error(self):
        return self._error


class Sender:
    """Keeps the responses of one request; the client is gone after ``patience`` of them."""

    def __init__(self, patience):
        self.responses, self.is_done, self._patience = [], False, patience

    def is_cancelled(self):
        return self._patience is not None and len(self.responses) >= self._patience

    def send(self, response=None, flags=0):
        assert not self.is_done
        self.responses += [response] if response else []
        self.is_done = flags == FINAL


class Request:
    """A request of a client."""

    def __init__(self, patience=None, **arrays):
        self._inputs = [Tensor(name, array) for name, array in arrays.items()]
        self.sender = Sender(patience)

    def inputs(self):
        return self._inputs

    def get_response_sender(self):
        return self.sender


def make_module(call):
    """The module; ``call`` answers a model's call of another: its name and arrays to an ``InferenceResponse``."""

    class InferenceRequest(Request):
        def __init__(self, model_name, requested_output_names, inputs):
            super().__init__(**{tensor.name(): tensor.as_numpy() for tensor in inputs})
            self._model = model_name

        def exec(self):
            return call(self._model, self)

    module = ModuleType("triton_python_backend_utils")
    vars(module).update(
        Tensor=Tensor, TritonError=TritonError, InferenceResponse=InferenceResponse, InferenceRequest=InferenceRequest,
        TRITONSERVER_RESPONSE_COMPLETE_FINAL=FINAL, get_output_tensor_by_name=lambda found, name: found.tensors[name],
        get_input_tensor_by_name=lambda found, name: next(t for t in found.inputs() if t.name() == name),
    )  # fmt: skip
    return module


def use_module(patch, call):
    """Puts the double where Triton's module would be, for models that are imported from now on."""
    patch.setitem(sys.modules, "triton_python_backend_utils", make_module(call))
    for name in ("sampler", "denoiser"):
        patch.delitem(sys.modules, f"zeus_trt.runtime.triton.{name}", raising=False)


def make_arguments(folder, parameters):
    """What Triton passes to ``initialize`` of a model in ``folder``."""
    config = {"parameters": {key: {"string_value": value} for key, value in parameters.items()}}
    return {
        "model_config": json.dumps(config), "model_repository": str(folder), "model_version": "1",
        "model_instance_kind": "CPU", "model_instance_device_id": "0",
    }  # fmt: skip
