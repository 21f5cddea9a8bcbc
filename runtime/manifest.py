"""The manifest of a bundle: what its engine takes, gives, and was made from."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from math import isqrt
from typing import Any

from zeus_trt.errors import ZeusError

FORMAT = 1
FILE_NAME = "manifest.json"
ONNX_FILE = "denoiser.onnx"
SCHEDULER_FILE = "scheduler/scheduler_config.json"
OUTPUT_NAME = "model_output"
AREA = "height x width"


def solver_name(num_steps: int) -> str:
    """File of the traced solver for ``num_steps`` steps of the checkpoint's scheduler."""
    return f"solvers/{num_steps}.json"


def name_dtype(tensor: Any) -> str:
    """Name of a torch tensor's dtype, such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class TensorSpec:
    """A tensor at the border of the denoiser.

    Args:
        name: The name in the diffusers ``forward``, or ``model_output``.
        dtype: Name of a torch dtype, such as ``float32``.
        axes: One entry per axis: a fixed size, or the name of a symbol such as ``batch``.
        value: The symbol that an integer is the value of; None for tensors.
        role: ``latents``, ``timestep``, ``conditioning``, ``size`` (follows from the sizes alone, such as the
            positions of tokens) or ``fixed`` (never changed); ``output`` for the output.
    """

    name: str
    dtype: str
    axes: tuple[int | str, ...]
    role: str = "conditioning"
    value: str | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} ({', '.join(str(axis) for axis in self.axes)})"


@dataclass(frozen=True)
class SymbolSpec:
    """A size that varies.

    Args:
        name: Its name, as in the axes.
        observed: The sizes it was exported and verified at.
        multiple_of: What the size must be a multiple of.
        maximum: The largest size that the graph takes, None if there is none.
        factors: Symbols that it is a product of, none if it stands alone.
        scale: What that product is multiplied with, a fraction such as ``1/4``.
        setting: The argument of the pipeline that moves it; ``height x width`` where it is their product that does.
        unit: What one more of it is of that argument, such as 8 pixels.
        offset: The argument less all units: -3 where 13 frames of a video are 4 of its latents.
    """

    name: str
    observed: tuple[int, ...]
    multiple_of: int = 1
    maximum: int | None = None
    factors: tuple[str, ...] = ()
    scale: str = "1"
    setting: str = ""
    unit: str = "1"
    offset: str = "0"

    def describe(self, size: int) -> str:
        """The size, and what it is in the pipeline's own terms: ``128 (1024 pixels)``."""
        asked = Fraction(self.unit) * size + Fraction(self.offset)
        if not self.setting or asked == size:
            return str(size)
        if self.setting in ("height", "width"):
            return f"{size} ({asked} pixels)"
        if self.setting == AREA:
            side = isqrt(round(asked))
            return f"{size} ({f'{side}x{side}' if side * side == asked else asked} pixels)"
        return f"{size} ({self.setting} {asked})"


@dataclass(frozen=True)
class Labels:
    """Class labels of a class-conditional model: 0..count-1, and the null class of guidance."""

    count: int
    null: int


@dataclass(frozen=True)
class Verification:
    """One comparison with the eager model in float32.

    Args:
        backend: What ran the exported graph. ``eager-bf16`` and ``eager-fp16`` are no graph: the module that it was
            traced from, in that precision.
        shape: Shape of the latents.
        dtype: Name of the output's dtype.
        max_error: Largest absolute difference of an element.
        relative_error: ``|output - eager| / |eager|``, Euclidean norms.
        setting: What the pipeline was run with, where it differs from the base run of the export.
    """

    backend: str
    shape: tuple[int, ...]
    dtype: str
    max_error: float
    relative_error: float
    setting: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and SHA-256 of a file of the bundle."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """Everything a runtime must know before it opens the engine.

    ``inputs[0]`` is the latents (noisy sample), ``inputs[1]`` the timestep, float32 of
    shape (batch,); the others are conditioning. ``constants`` are the arguments of the
    denoiser that are no tensors, baked into the graph, by their place in its ``forward``.
    ``guidance`` is how the pipeline guides: ``batched`` (one call, the batch doubled), ``sequential`` (a call per
    branch), ``embedded`` (the denoiser is told the scale as its input ``guidance``,
    times ``guidance_factor``: 1 for FLUX, 1000 for HunyuanVideo, None if it is not known) or ``none``.
    ``state_axes`` are the axes of the part of the latents that the solver steps, all of them if empty: an inpainting
    model takes more channels, which stay. ``precision`` is that of the graph, ``keep_fp32`` the patterns of the modules
    that run in float32 in it all the same. ``timestep_scale`` is what the scheduler's timesteps are multiplied with
    (0.001 for FLUX), None where the pipeline tells its denoiser another time. ``adapters`` are those that were
    active or fused in the exported denoiser, name -> scale as ``set_adapters`` takes it.
    """

    model: str
    component: str
    denoiser_class: str
    denoiser_config: dict[str, Any]
    weights_sha256: str
    prediction_type: str
    inputs: tuple[TensorSpec, ...]
    output: TensorSpec
    symbols: tuple[SymbolSpec, ...]
    labels: Labels | None
    verification: tuple[Verification, ...]
    versions: dict[str, str]
    pipeline_class: str | None = None
    constants: dict[str, Any] = field(default_factory=dict)
    guidance: str = "batched"
    guidance_factor: float | None = None
    state_axes: tuple[int | str, ...] = ()
    timestep_scale: float | None = 1.0
    precision: str = "fp32"
    keep_fp32: tuple[str, ...] = ()
    adapters: dict[str, float] = field(default_factory=dict)
    files: dict[str, FileEntry] = field(default_factory=dict)

    @property
    def latents(self) -> TensorSpec:
        """The noisy sample: the first input."""
        return self.inputs[0]

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of the latents of one image that the solver steps, without the batch axis.

        Raises:
            ZeusError: The latents have an axis that varies.
        """
        axes = (self.state_axes or self.latents.axes)[1:]
        if moving := [axis for axis in axes if isinstance(axis, str)]:
            raise ZeusError(
                f"latents: got {self.latents}, whose {', '.join(moving)} may vary; expected fixed sizes. "
                "Give the noise, or call the engine yourself."
            )
        return tuple(int(size) for size in axes)

    def describe(self) -> str:
        """Denoiser, inputs that vary, and the worst error to eager, on one line."""
        worst = max(record.relative_error for record in self.verification)
        symbols = ", ".join(symbol.name for symbol in self.symbols)
        return f"{self.denoiser_class}, {symbols} may vary, relative error to eager at most {worst:.1e}"

    def to_json(self) -> str:
        """The manifest as JSON text."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Reads what ``to_json`` wrote.

        Raises:
            ZeusError: No manifest, or one of a format this version does not know.
        """
        try:
            data = json.loads(text)
            version = data.pop("format")
            if version != FORMAT:
                raise ZeusError(
                    f"manifest: got format {version}; expected {FORMAT}. Update zeus-trt, or export the model again."
                )
            data["inputs"] = tuple(_read_tensor(spec) for spec in data["inputs"])
            data["output"] = _read_tensor(data["output"])
            data["labels"] = Labels(**data["labels"]) if data["labels"] else None
            data["symbols"] = tuple(SymbolSpec(**_read_tuples(entry)) for entry in data["symbols"])
            data["verification"] = tuple(Verification(**_read_tuples(entry)) for entry in data["verification"])
            data |= {name: tuple(data.get(name, ())) for name in ("state_axes", "keep_fp32")}
            data["files"] = {name: FileEntry(**entry) for name, entry in data["files"].items()}
            return cls(**data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ZeusError(
                f"manifest: got JSON that does not fit ({error}); expected a zeus-trt manifest. Export the model again."
            ) from error


def _read_tensor(data: dict[str, Any]) -> TensorSpec:
    return TensorSpec(**_read_tuples(data))


def _read_tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
