"""The model ``sampler``: trajectories whose full steps are calls of the models ``denoiser`` and ``quantized``.

Each request is a trajectory in a thread of a pool, with its own plan, steps and guidance. Threads wait for the denoiser
at the same time, so Triton's dynamic batcher merges their calls.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as pb_utils

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, escape, say_cause
from zeus_trt.runtime.bundle.bundle import Bundle
from zeus_trt.runtime.bundle.manifest import FILE_NAME, Manifest
from zeus_trt.runtime.denoiser import EnginePair
from zeus_trt.runtime.request import Request
from zeus_trt.runtime.solver import Solver
from zeus_trt.runtime.steppers import ProgramStepper
from zeus_trt.runtime.trajectory import Trajectory
from zeus_trt.runtime.triton.numpy_check import check_numpy
from zeus_trt.zeus_graph import Plan
from zeus_trt.zeus_graph.calibrated_plan import CalibratedPlan
from zeus_trt.zeus_graph.fold import fold

_NEGATIVE = "negative_"
_SETTINGS = ("num_steps", "ratio", "plan", "predictor", "guidance_scale", "batch", "every")


class TritonPythonModel:
    """What Triton calls; ``parameters`` of the model's config say how to call the denoiser."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Reads the manifest; the stored solvers are read, and compared with it, where they are used."""
        check_numpy(pb_utils)
        parameters = json.loads(args["model_config"])["parameters"]
        folder = Path(args["model_repository"], args["model_version"], "bundle")
        manifest = Manifest.from_json(strict_json.read_bytes(folder / FILE_NAME, "manifest"))
        bundle = Bundle(folder, manifest)
        self._solver, self._bundle = Solver(bundle), bundle
        max_rows = int(parameters["max_rows"]["string_value"])
        models = [parameters[key]["string_value"] for key in ("denoiser", "quantized") if key in parameters]
        engines = [Denoiser(model, manifest, max_rows) for model in models]
        self._denoiser = EnginePair(*engines) if len(engines) == 2 else engines[0]
        self._pool = ThreadPoolExecutor(int(parameters["trajectories"]["string_value"]))
        torch.set_num_threads(1)  # the solver's arithmetic is small, and the denoiser needs the cores

    def execute(self, requests: list[Any]) -> None:
        """Begins a trajectory for each request, and does not wait for them."""
        for request in requests:
            given = {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}
            self._pool.submit(self._answer, given, request.get_response_sender())

    def finalize(self) -> None:
        """Waits for the trajectories that run."""
        self._pool.shutdown()

    def _answer(self, given: dict[str, np.ndarray], sender: Any) -> None:
        """Sends the latents of a trajectory or its error: whatever happens, the client gets a last response."""
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        try:
            latents, nfe = self._run(given, sender)
            sender.send(_make_response(latents, nfe, nfe), flags=final)
        except _Cancelled:
            sender.send(flags=final)
        except Exception as error:
            text = str(error) if isinstance(error, ZeusError) else f"sampler: {escape(say_cause(error))}"
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(text)), flags=final)

    def _run(self, given: dict[str, np.ndarray], sender: Any) -> tuple[torch.Tensor, int]:
        """Final latents, and the number of full steps."""
        every, request = read_request(given)
        num_steps = request.num_steps
        self._check_steps(num_steps)
        settled = request.settle(
            lambda: self._solver.count_evaluations(num_steps), lambda: self._solver.program(num_steps), None
        )
        if "Q" in settled.plan.steps and not isinstance(self._denoiser, EnginePair):
            raise ZeusError(
                "plan: got Q for a repository without a quantized denoiser; expected F, X and R. Package a bundle that "
                "was quantized, or write F."
            )
        trajectory = Trajectory(settled, self._bundle.manifest, self._denoiser, self._solver)
        stepper = ProgramStepper(fold(self._solver.program(num_steps), settled.plan), trajectory.noise)
        model, nfe = trajectory.make_call(stepper), settled.plan.nfe
        while call := stepper.call:
            if sender.is_cancelled():
                raise _Cancelled
            stepper.feed(model(*call))
            if every and model.meter.nfe % every == 0 and model.meter.nfe < nfe:
                sender.send(_make_response(stepper.latents, model.meter.nfe, nfe))
        return model.finish(), nfe

    def _check_steps(self, num_steps: int) -> None:
        """Refuses steps that only diffusers could trace: an answer must not depend on what else this server has."""
        if not self._bundle.has_solver(num_steps):
            solvers = (Path(name) for name in self._bundle.manifest.files if name.startswith("solvers/"))
            stored = ", ".join(map(str, sorted(int(file.stem) for file in solvers)))
            raise ZeusError(
                f"num_steps: got {num_steps}; expected one of {stored}, whose solvers the bundle stores. Ask for one "
                "of these, or export the model with others."
            )


class Denoiser:
    """A model of the same server, ``denoiser`` or ``quantized``, as a denoiser.

    Args:
        model: Its name.
        manifest: Its inputs and output.
        max_rows: Most rows of one call; 0 where the batcher is off.
    """

    def __init__(self, model: str, manifest: Manifest, max_rows: int):
        self._model, self._max_rows, self._output = model, max_rows, manifest.output.name
        self._latents = manifest.latents.name
        self._dtypes = {spec.name: getattr(torch, spec.dtype) for spec in manifest.inputs}

    def __call__(self, **inputs: torch.Tensor) -> torch.Tensor:
        """The output (rows, ...) of inputs (rows, ...), in several calls if there are more rows than one takes."""
        if not self._max_rows:
            return self._infer(inputs)
        rows = range(0, len(inputs[self._latents]), self._max_rows)
        parts = [{name: value[row : row + self._max_rows] for name, value in inputs.items()} for row in rows]
        outputs = [self._infer(part) for part in parts]
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _infer(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        tensors = []
        for name, value in inputs.items():
            lacks_axes = value.ndim == bool(self._max_rows)  # Triton wants one beside that of the rows
            value = (value[..., None] if lacks_axes else value).to(self._dtypes[name])
            tensors.append(pb_utils.Tensor(name, value.contiguous().numpy()))
        request = pb_utils.InferenceRequest(
            model_name=self._model, requested_output_names=[self._output], inputs=tensors
        )
        response = request.exec()
        if response.has_error():
            raise ZeusError(
                f"denoiser: got an error from the model {self._model} ({response.error().message()}); expected an "
                "output. Look at the log of Triton."
            )
        output = pb_utils.get_output_tensor_by_name(response, self._output)
        return torch.from_dlpack(output.to_dlpack()).cpu()


def read_request(given: Mapping[str, np.ndarray]) -> tuple[int, Request]:
    """The settings of a trajectory from the tensors of a request.

    Args:
        given: By name: numbers (1,), ``seed`` (1,) or one per row, ``noise``, conditioning, and the conditioning of
            the unconditional rows as ``negative_NAME``.

    Returns:
        After how many full steps a response shall be sent, 0 for only the last; and the request.

    Raises:
        ZeusError: As ``Request``.
    """
    settings = {name: _read_one(name, given[name]) for name in _SETTINGS if name in given}
    every = settings.pop("every", 0)
    if every < 0:
        raise ZeusError(f"every: got {every}; expected a number of full steps, or 0 for the last alone. Change it.")
    if "plan" in settings:
        settings["plan"] = read_plan(settings["plan"])
    if "seed" in given:
        seeds = given["seed"].tolist()
        settings["seed"] = seeds[0] if len(seeds) == 1 else seeds
    tensors = {name: torch.from_numpy(value) for name, value in given.items() if name not in (*_SETTINGS, "seed")}
    noise = tensors.pop("noise", None)
    negative = {name[len(_NEGATIVE) :]: tensors.pop(name) for name in [*tensors] if name.startswith(_NEGATIVE)}
    return every, Request(tensors, noise=noise, negative=negative or None, **settings)


def read_plan(text: str) -> Plan:
    """A plan from letters, or from the JSON of a plan or a calibrated plan; never from a file of the server.

    Raises:
        ZeusError: None of these.
    """
    if not text.lstrip().startswith("{"):
        return Plan(text)
    data = strict_json.decode(text.encode(), "plan", advice="Write the plan again.")
    return CalibratedPlan.from_json(data).plan if "plan" in data else Plan.from_json(data)


class _Cancelled(Exception):
    """The client has gone."""


def _read_one(name: str, value: np.ndarray) -> Any:
    if value.size != 1:
        raise ZeusError(f"{name}: got {value.size} values; expected one. Change it.")
    found = value.item()
    return found.decode("utf-8", "replace") if isinstance(found, bytes) else found


def _make_response(latents: torch.Tensor, done: int, nfe: int) -> Any:
    progress = pb_utils.Tensor("progress", np.array([done, nfe], np.int32))
    return pb_utils.InferenceResponse([pb_utils.Tensor("latents", latents.numpy()), progress])
