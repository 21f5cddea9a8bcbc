"""A call of a pipeline's denoiser, answered by a bundle's engine."""

import dataclasses
import inspect
import json
import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.adapter import Adapter
from zeus_trt.runtime.bundle.branch import say_branches
from zeus_trt.runtime.bundle.layout import pack
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.mixture import Mixture
from zeus_trt.runtime.bundle.precision import FLOATS, Precision
from zeus_trt.runtime.denoiser import Denoiser
from zeus_trt.runtime.engines.named_inputs import spread_rows
from zeus_trt.runtime.pipelines.answers import list_tensors
from zeus_trt.runtime.pipelines.arguments import Arguments, bind
from zeus_trt.runtime.pipelines.call_sizes import CallSizes
from zeus_trt.runtime.pipelines.masks import fill_masks
from zeus_trt.runtime.pipelines.module_state import read_adapters, read_state
from zeus_trt.runtime.pipelines.rows import Rows, read_prediction
from zeus_trt.runtime.pipelines.side_effects import find_kept, find_new, unwrap
from zeus_trt.runtime.pipelines.weights_digest import digest_weights, may_digest
from zeus_trt.zeus_graph import json_file

_ALLOWED: dict[Precision | None, float] = {
    Precision.FP32: 2e-3, Precision.FP16: 2e-2, Precision.BF16: 0.1, Precision.INT8: 0.5, Precision.FP8: 0.5,
}  # fmt: skip
"""Largest error of a first output, by the coarser precision of engine and module: TF32 alone makes 1e-3. A
quantized graph was measured when it was made: here it only has to be one of this model."""
_UNSAID = ("return_dict",)  # how the output is wrapped: both ways of reading it work
_SAME_SCALE = 1e-4  # relative


class EngineCall:
    """Stands in for the ``__call__`` of a denoiser.

    Args:
        engine: The engine.
        manifest: That of its bundle.
        module_class: The denoiser's class, whose ``forward`` names the arguments.
        pixels: Pixels of the pipeline's pictures per pixel of its latents, for messages.
        adapter: Those of the manifest, as ``digest_adapters`` takes it.

    Raises:
        ZeusError: The bundle is that of another class.
    """

    def __init__(
        self,
        engine: Denoiser,
        manifest: Manifest,
        module_class: Any,
        pixels: int | None = None,
        adapter: Adapter | Mixture | None = None,
    ):
        if module_class.__name__ != manifest.denoiser_class:
            raise ZeusError(
                f"engine: got a bundle of a {manifest.denoiser_class} for a {module_class.__name__}; expected one "
                "of the same class. Export this pipeline."
            )
        self._engine, self._manifest, self._adapter = engine, manifest, adapter
        self._signature = inspect.signature(module_class.forward)
        self._output = _make_output(_name_output(module_class.forward))
        self._sizes = CallSizes(manifest, pixels)
        self.noun = manifest.component if manifest.layout else "denoiser"
        self.precision = getattr(getattr(engine, "info", None), "precision", manifest.precision)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes what ``forward`` takes, and answers as it does; row by row in an engine of one row.

        Returns:
            Of a denoiser, what pipelines read as ``[0]`` and by the name that ``forward`` gives its output: a tensor,
            or a list with one per row. The tensor itself, of one that answers so.

        Raises:
            ZeusError: An argument that the graph has no input for, a size that it does not take, another constant than
                it was exported with, or an input whose gradient is asked for.
        """
        arguments = bind(self._signature, None, *args, **kwargs)
        latents, rows = self._manifest.latents.name, Rows.of(self._manifest, arguments)
        count = rows.count(latents, arguments) if rows.is_one else 1
        output = torch.cat([self._answer(rows.flatten(arguments, row)) for row in range(count)])
        if layout := self._manifest.layout:
            return layout.split(output, self._sizes.measured, self._manifest.symbols)
        if self._manifest.is_bare:
            return output
        return self._output([*output.unbind(0)] if rows.find_list(latents) else output)

    def _answer(self, found: Arguments) -> torch.Tensor:
        """The denoiser's output for arguments as the graph takes them."""
        specs = [spec for spec in self._manifest.inputs if spec.role != "constant"]
        found = fill_masks(self._manifest, found)
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
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in found.tensors.values()):
            raise ZeusError(
                "engine: got an input whose gradient the pipeline asks for; expected none. An engine gives outputs "
                "only: run this pipeline without it."
            )
        inputs = {spec.name: torch.as_tensor(found.leaves[spec.name]) for spec in specs}
        latents = inputs[specs[0].name]
        for spec in specs[1:]:  # a network reads one row for all of its rows
            if spec.role == "timestep" or spec.axes[:1] == specs[0].axes[:1]:
                inputs[spec.name] = spread_rows(inputs[spec.name], len(latents))
        inputs = self._leave(inputs)
        self._sizes.check(inputs)
        output = self._engine(**inputs).to(latents.device, latents.dtype)
        if (branches := self._manifest.branches) and output.isnan().all():
            raise ZeusError(f"engine: got NaN; expected numbers. {say_branches(branches)}")
        if (axis := self._manifest.variance_axis) is not None:  # the pipeline drops it as well
            output = torch.cat([output, torch.zeros_like(output)], axis)
        return output

    def predict(self, answer: Any) -> torch.Tensor:
        """The part of a denoiser's answer that the engine gives: all but a learned variance."""
        if self._manifest.layout:
            return pack(list_tensors(answer))
        axis, output = self._manifest.variance_axis, read_prediction(answer)
        return output if axis is None else output.narrow(axis, 0, output.shape[axis] // 2)

    def _leave(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The solver's latents and timestep, of those that the pipeline passes to its denoiser."""
        manifest, left = self._manifest, dict(inputs)
        latents, timestep = (spec.name for spec in manifest.inputs[:2])
        if manifest.timestep_scale != 1.0:
            left[timestep] = left[timestep].float() / manifest.timestep_scale
        if (axis := manifest.constant_axis) is not None:
            size = manifest.latents.axes[axis]
            constant = next(spec.name for spec in manifest.inputs if spec.role == "constant")
            left[latents], left[constant] = left[latents].tensor_split([int(size)], axis)
        return left

    def check_adapters(self, module: Any) -> None:
        """Compares the adapters of the module that it replaces with those that were exported.

        Raises:
            ZeusError: Others are active or fused, or at other scales.
        """
        exported = {**self._manifest.adapters}
        found = read_adapters(module)
        if exported.keys() != found.keys() or any(
            not math.isclose(found[name], exported[name], rel_tol=_SAME_SCALE) for name in found
        ):
            advice = "Set these" if exported else "Disable or unload them"
            raise ZeusError(
                f"adapters: got {_describe(found)} on the pipeline's {self._manifest.component}; expected "
                f"{_describe(exported)}, as in the engine. {advice}, or export the pipeline as it is now."
            )

    def check_weights(self, module: Any, advice: str) -> None:
        """Compares each weight of the module that it replaces, and of its adapters, with those that were exported.

        Args:
            module: The module. Weights that cannot be read, such as offloaded ones, are not compared.
            advice: What to do if the weights differ.

        Raises:
            ZeusError: They differ in the engine's precision.
        """
        manifest, graph = self._manifest, self._manifest.find_graph()
        if graph.precision not in FLOATS or not may_digest(module):
            return
        weights, adapters = digest_weights(module, graph, self._adapter)
        if weights != manifest.weights_sha256:
            found = Precision.of(next(iter(module.parameters())).dtype)
            if found not in (Precision.FP32, manifest.precision):
                advice = f"Its weights are in {found} now: load them as they were exported, or export this pipeline."
            raise ZeusError(
                f"engine: got a {manifest.component} whose weights have the digest {weights[:12]} in "
                f"{manifest.precision}; expected {manifest.weights_sha256[:12]}, as in the engine. {advice}"
            )
        if adapters != manifest.adapters_sha256:
            raise ZeusError(
                f"adapters: got other weights or scales of {_describe(read_adapters(module))} on the pipeline's "
                f"{manifest.component}; expected those in the engine. Load the adapters that were exported, or export "
                "the pipeline as it is now."
            )

    def _check_constants(self, constants: dict[str, Any]) -> None:
        named = {spec.name for spec in self._manifest.inputs}
        exported = self._manifest.constants
        for path, value in json_file.plain(json.loads(json.dumps(constants, default=str))).items():
            if path in named or path.split(".")[-1] in named or path in _UNSAID:
                continue
            if path not in exported or exported[path] != value:
                raise ZeusError(
                    f"{path}: got {value!r} from the pipeline; expected {exported.get(path)!r}, which is baked "
                    "into the engine. Run the pipeline as it was exported, or export it as you run it."
                )


class CheckedCall:
    """An engine that is compared with the module it replaces, again after each change of the module.

    Args:
        engine: Answers the calls.
        module: The module.
        compares: Whether weights and outputs are compared; adapters always are.
        adds_adapter: The engine has an adapter that the module lacks: outputs are not compared.
    """

    def __init__(self, engine: EngineCall, module: Any, compares: bool = True, adds_adapter: bool = False):
        self._engine, self.module, self._compares = engine, module, compares
        self._adds_adapter = adds_adapter
        self._is_due = True
        self._compared: list[Any] = []  # states of the module at which the outputs agreed

    def expect_change(self) -> None:
        """Has the next call look at the module: it may have changed."""
        self._is_due = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes what ``forward`` takes.

        Raises:
            ZeusError: As ``EngineCall``, for other adapters or weights than those that were exported, and for answers
                that differ.
        """
        state = None
        if self._is_due:
            self._engine.check_adapters(self.module)
            state = read_state(self.module) if self._compares else None
        answer = self._engine(*args, **kwargs)
        if state is not None and state not in self._compared:
            if not self._adds_adapter:
                self._compare(answer, args, kwargs)
            self._engine.check_weights(self.module, self._advise())
            self._compared = [state, read_state(self.module)]  # a first call may fill caches
        self._is_due = False
        return answer

    def _compare(self, answer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        output, expected = (self._engine.predict(one) for one in (answer, self._call_module(args, kwargs)))
        size = expected.float().norm().clamp_min(1e-12)  # a control of scale 0 is zeros
        error = float((output - expected).float().norm() / size)
        allowed = max(_ALLOWED.get(name, 0.0) for name in (self._engine.precision, Precision.of(expected.dtype)))
        if error < allowed:
            return
        raise ZeusError(
            f"engine: got an output that is {error:.2g} off the pipeline's own {self._engine.noun}; "
            f"expected less than {allowed:g}. {self._advise()}"
        )

    def _advise(self) -> str:
        if self._compared:
            return f"The {self._engine.noun} has changed since both agreed: undo that, or export this pipeline."
        return "Its bundle was exported from other weights: export this pipeline."

    def _call_module(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for _ in range(2):  # the first call may fill caches
            before = find_kept(self.module) if isinstance(self.module, torch.nn.Module) else {}
            expected = self.module(*args, **kwargs)
            seen = list_tensors((args, kwargs, expected))
            if not isinstance(self.module, torch.nn.Module) or not find_new(before, self.module, seen):
                return expected
        raise ZeusError(
            f"engine: got a pipeline whose {type(unwrap(self.module)).__name__} keeps tensors of each call, such as "
            "attention maps; expected one that reads its output only. Run this pipeline without an engine."
        )


def _make_output(name: str) -> Callable[[Any], Any]:
    """The class of outputs of one field."""
    return namedtuple("Output", [name])


def _name_output(forward: Any) -> str:
    """The name of the first field of what a network returns."""
    try:
        hint = get_type_hints(forward).get("return")
    except NameError:  # a type that is imported for type checkers alone
        return "sample"
    kinds = [kind for kind in get_args(hint) or (hint,) if dataclasses.is_dataclass(kind)]
    return next((fields[0].name for kind in kinds if (fields := dataclasses.fields(kind))), "sample")


def _describe(adapters: dict[str, float]) -> str:
    return ", ".join(f"{name} at {scale:g}" for name, scale in adapters.items()) or "no adapter"
