"""Loading a diffusers model folder: one denoiser and one scheduler."""

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.border import Border
from zeus_trt.export.capture import BATCHED, CONDITIONING, LATENTS, TIMESTEP, Capture
from zeus_trt.export.description import digest_weights
from zeus_trt.export.loading import check_saved_adapters, say_dtype
from zeus_trt.export.missing_weights import check_missing
from zeus_trt.runtime.bundle.tensor_spec import SymbolSpec, TensorSpec, name_dtype
from zeus_trt.runtime.pipelines.arguments import flatten
from zeus_trt.runtime.scheduler import read_config

EXAMPLE_BATCH = 2  # a batch of 1 is specialised by torch.export
COMPONENTS = ("unet", "transformer")
SCHEDULER_CONFIG = Path("scheduler") / "scheduler_config.json"
_LATENTS = ("sample", "hidden_states")
_TAKES = {*_LATENTS, "timestep", "class_labels"}


@dataclass(frozen=True)
class Model:
    """A denoiser in float32 eval mode, and where it came from."""

    name: str
    component: str
    denoiser: Any  # a torch.nn.Module with diffusers' config
    weights_sha256: str
    scheduler_config: Path
    prediction_type: str

    @property
    def config(self) -> dict[str, Any]:
        """The denoiser's config as JSON data."""
        return json.loads(json.dumps(dict(self.denoiser.config), default=str))

    @property
    def latents_name(self) -> str:
        """The denoiser's name for the noisy latents."""
        return next(name for name in inspect.signature(type(self.denoiser).forward).parameters if name in _LATENTS)

    @property
    def num_labels(self) -> int | None:
        """Size of the class embedding, null class included; None for an unconditional model."""
        return self.config.get("num_class_embeds") or self.config.get("num_embeds_ada_norm")


def load_model(folder: str | Path) -> Model:
    """Loads ``folder``: ``unet`` or ``transformer`` beside ``scheduler``, in diffusers' format.

    Raises:
        ZeusError: Not such a folder, weights that do not load, or a denoiser that takes
            inputs beyond latents, timestep and class labels.
    """
    folder = Path(folder)
    component = next((name for name in COMPONENTS if (folder / name / "config.json").is_file()), None)
    if component is None or not (folder / SCHEDULER_CONFIG).is_file():
        raise ZeusError(
            f"model: got {folder}; expected a folder with {' or '.join(COMPONENTS)}, and scheduler, in diffusers' "
            "format. Save the pipeline with save_pretrained()."
        )
    denoiser = _load_denoiser(folder / component)
    _check_inputs(denoiser)
    scheduler = read_config(folder / SCHEDULER_CONFIG)
    return Model(
        name=folder.resolve().name,
        component=component,
        denoiser=denoiser,
        weights_sha256=digest_weights(denoiser)[0],
        scheduler_config=folder / SCHEDULER_CONFIG,
        prediction_type=scheduler.get("prediction_type", "flow_prediction"),  # flow-matching ones have no such key
    )


def _read_config(file: Path) -> dict[str, Any]:
    return strict_json.read(file, dict[str, Any], f"model config {file}", advice="Save the model again.")


def _load_denoiser(folder: Path) -> Any:
    import diffusers

    check_saved_adapters(folder)
    name = _read_config(folder / "config.json").get("_class_name")
    model_class: Any = getattr(diffusers, name, None) if isinstance(name, str) and name.isidentifier() else None
    is_model = isinstance(model_class, type) and issubclass(model_class, diffusers.ModelMixin)
    if not is_model:
        raise ZeusError(
            f"model: got the class {name!r}; expected a model of diffusers {diffusers.__version__}. Update diffusers."
        )
    try:
        denoiser, found = model_class.from_pretrained(
            folder, **say_dtype(torch.float32), use_safetensors=True, low_cpu_mem_usage=False, output_loading_info=True
        )
    except Exception as error:  # safetensors, diffusers and the file system each raise their own
        raise ZeusError(
            f"model: got weights in {folder} that do not load ({say_cause(error)}); expected whole "
            "safetensors files of this model. Download or save the model again."
        ) from error
    check_missing(folder, found["missing_keys"], found["unexpected_keys"])
    return denoiser.eval()


def _check_inputs(denoiser: torch.nn.Module) -> None:
    parameters = inspect.signature(type(denoiser).forward).parameters.values()
    required = {p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}
    if extra := sorted(required - _TAKES):
        raise ZeusError(
            f"model: got {type(denoiser).__name__}, which needs {', '.join(extra)}; expected a denoiser of latents, "
            "timestep and class labels, which are all that can be made for a bare folder. Save its whole pipeline, "
            "and call export_pipeline()."
        )


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


def describe_model(model: Model) -> Capture:
    """The call of a bare denoiser, as ``capture`` would find it in a pipeline: only the batch varies."""
    inputs = example_inputs(model, EXAMPLE_BATCH)
    roles = {model.latents_name: LATENTS, "timestep": TIMESTEP}
    axes = {name: ("batch", *value.shape[1:]) for name, value in inputs.items()}
    return Capture(
        component=model.component,
        denoiser=model.denoiser,
        border=Border(model.latents_name, "timestep"),
        inputs=tuple(
            TensorSpec(name, name_dtype(inputs[name]), axes[name], roles.get(name, CONDITIONING)) for name in inputs
        ),
        symbols=(SymbolSpec("batch", (EXAMPLE_BATCH,)),),
        constants={},
        guidance=BATCHED,
        guidance_factor=None,
        output_axes=axes[model.latents_name],
        arguments=flatten(inputs),
    )
