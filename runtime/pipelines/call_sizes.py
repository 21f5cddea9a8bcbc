"""The sizes of a pipeline's call, checked against a manifest before an engine is called."""

from collections.abc import Mapping

import torch

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Manifest
from zeus_trt.runtime.bundle.size_rules import SizeRules
from zeus_trt.runtime.bundle.tensor_spec import TensorSpec

_TEXTS = ("encoder", "prompt", "text", "txt")


class CallSizes:
    """Refuses what the graph does not take, in the pipeline's terms.

    Args:
        manifest: That of the engine's bundle.
        pixels: Pixels of the pipeline's pictures per pixel of its latents, None if that is not known.
    """

    def __init__(self, manifest: Manifest, pixels: int | None = None):
        self._manifest, self._rules, self._pixels = manifest, SizeRules.of(manifest), pixels
        self._fitting: dict[tuple[object, ...], dict[str, int]] = {}
        self.measured: dict[str, int] = {}
        """Sizes of the last call that was checked, by symbol."""

    def check(self, inputs: Mapping[str, torch.Tensor]) -> None:
        """Looks at sizes only, and at each combination of them once.

        Args:
            inputs: Tensors by name; integers as tensors ().

        Raises:
            ZeusError: A size that the graph does not take.
        """
        specs = self._manifest.inputs
        sizes = tuple((int(inputs[spec.name]),) if spec.value else inputs[spec.name].shape for spec in specs)
        if (known := self._fitting.get(sizes)) is not None:
            self.measured = known
            return
        batch, checked = sizes[0][:1], dict(inputs)
        for spec, shape in zip(specs, sizes, strict=True):
            if spec.role == "timestep" and len(spec.axes) < 2 and tuple(shape) in ((), (1,), tuple(batch)):
                del checked[spec.name]
                continue
            axes = (spec.value,) if spec.value else spec.axes
            if len(shape) != len(axes):
                raise ZeusError(
                    f"{spec.name}: got the shape {tuple(shape)} from the pipeline; expected {len(axes)} axes, "
                    f"({', '.join(map(str, axes))}). Run the pipeline with the same kind of arguments as in its export."
                )
            for place, (axis, size) in enumerate(zip(axes, shape, strict=True)):
                if isinstance(axis, int) and size != axis:
                    raise self._refuse(spec, place, size, axis)
        self._rules.check(checked)
        self.measured = self._fitting[sizes] = self._rules.measure(checked)

    def _refuse(self, spec: TensorSpec, place: int, size: int, fixed: int) -> ZeusError:
        noun = self._name(spec, place)
        if noun in ("height", "width") and self._pixels:
            size, fixed, unit = size * self._pixels, fixed * self._pixels, " pixels"
            advice = f"Pass {noun}={fixed}, or export the pipeline with a {noun} that varies."
        elif noun == "channels":
            unit, advice = " channels", "Its bundle belongs to another kind of pipeline: export this one."
        elif noun == "batch":
            unit, advice = (
                " rows",
                "Ask for as many images, and for guidance or none, as in the export; or export anew.",
            )
        else:
            unit, advice = f" {noun}", "Run the pipeline with that many, or export it with as many as you run it with."
        return ZeusError(
            f"{spec.name}: got {size}{unit} from the pipeline; expected {fixed}, which is fixed in the engine. {advice}"
        )

    def _name(self, spec: TensorSpec, place: int) -> str:
        rank = len(spec.axes)
        if place == 0 and rank > 1:
            return "batch"
        if spec.role == "latents" and rank >= 4 and place >= rank - 2:
            return ("height", "width")[place - rank + 2]
        if spec.role == "latents" and rank == 5:
            channels = self._manifest.denoiser_config.get("in_channels")
            first_is_frames = spec.axes[2] == channels and spec.axes[1] != channels
            return "frames of latents" if (place == 1) == first_is_frames else "channels"
        if place == 1 and spec.name.startswith(_TEXTS) and (rank == 3 or "mask" in spec.name):
            return "tokens of text"
        if spec.role == "latents" and rank == 3 and place == 1:
            return "tokens of the picture"
        return "channels" if place == rank - 1 or rank == 4 else f"for axis {place}"
