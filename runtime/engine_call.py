"""A call of a pipeline's denoiser, answered by a bundle's engine."""

import inspect
import json
from typing import Any, NamedTuple

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.arguments import bind, flatten
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.engine import name_precision
from zeus_trt.runtime.manifest import Manifest
from zeus_trt.runtime.named_inputs import spread_rows
from zeus_trt.runtime.size_rules import SizeRules

_ALLOWED = {"fp32": 2e-3, "fp16": 2e-2, "bf16": 0.1}
"""Largest error of a first output, by the coarser precision of engine and module: TF32 alone makes 1e-3."""
_UNSAID = ("return_dict",)  # how the output is wrapped: both ways of reading it work


class Output(NamedTuple):
    """What pipelines read as ``[0]`` and as ``.sample``."""

    sample: torch.Tensor


class EngineCall:
    """Stands in for the ``__call__`` of a denoiser.

    Args:
        engine: The engine.
        manifest: That of its bundle.
        module_class: The denoiser's class, whose ``forward`` names the arguments.

    Raises:
        ZeusError: The bundle is that of another class.
    """

    def __init__(self, engine: Denoiser, manifest: Manifest, module_class: Any):
        if module_class.__name__ != manifest.denoiser_class:
            raise ZeusError(
                f"engine: got a bundle of a {manifest.denoiser_class} for a {module_class.__name__}; expected one "
                "of the same class. Export this pipeline."
            )
        self._engine, self._manifest = engine, manifest
        self._rules = SizeRules.of(manifest)
        self._signature = inspect.signature(module_class.forward)
        self.precision = manifest.precision

    def __call__(self, *args: Any, **kwargs: Any) -> Output:
        """Takes what ``forward`` takes.

        Raises:
            ZeusError: An argument that the graph has no input for, another constant than it was exported with, or
                sizes that the graph is not made for.
        """
        found = flatten(bind(self._signature, None, *args, **kwargs))
        specs = self._manifest.inputs
        if missing := [
            spec.name for spec in specs if not isinstance(found.leaves.get(spec.name), torch.Tensor | int | float)
        ]:
            raise ZeusError(
                f"{missing[0]}: got none from the pipeline; expected it, as in the run that was exported. "
                "Run the pipeline with the same kind of arguments, or export it as you run it."
            )
        if extra := sorted(found.tensors.keys() - {spec.name for spec in specs}):
            raise ZeusError(
                f"{extra[0]}: got a tensor from the pipeline; expected none, as in the run that was exported. "
                "Run the pipeline with the same kind of arguments, or export it as you run it."
            )
        self._check_constants({found.paths[name]: value for name, value in found.constants.items()})
        inputs = {spec.name: torch.as_tensor(found.leaves[spec.name]) for spec in specs}
        inputs[specs[1].name] = spread_rows(inputs[specs[1].name], len(inputs[specs[0].name]))
        self._rules.check(inputs)
        latents = inputs[specs[0].name]
        return Output(self._engine(**inputs).to(latents.device, latents.dtype))

    def _check_constants(self, constants: dict[str, Any]) -> None:
        named = {spec.name for spec in self._manifest.inputs}
        exported = self._manifest.constants
        for path, value in json.loads(json.dumps(constants, default=str)).items():
            if path.split(".")[-1] in named or path in _UNSAID:
                continue
            if path not in exported or exported[path] != value:
                raise ZeusError(
                    f"{path}: got {value!r} from the pipeline; expected {exported.get(path)!r}, which is baked "
                    "into the engine. Run the pipeline as it was exported, or export it as you run it."
                )


class CheckedCall:
    """An engine whose first answer is compared with that of the module it stands for."""

    def __init__(self, engine: EngineCall, module: Any):
        self._engine, self._module = engine, module
        self._is_checked = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes what ``forward`` takes.

        Raises:
            ZeusError: As ``EngineCall``, and for answers that differ.
        """
        answer = self._engine(*args, **kwargs)
        if not self._is_checked:
            expected = self._module(*args, **kwargs)[0]
            error = float((answer.sample - expected).float().norm() / expected.float().norm())
            allowed = max(_ALLOWED.get(name, 0.0) for name in (self._engine.precision, name_precision(expected.dtype)))
            if not error < allowed:
                raise ZeusError(
                    f"engine: got an output that is {error:.2g} off the pipeline's own denoiser; expected less than "
                    f"{allowed:g}. Its bundle was exported from other weights: export this pipeline."
                )
            self._is_checked = True
        return answer
