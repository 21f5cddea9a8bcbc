"""A bare model folder as a pipeline: one denoiser of latents, timestep and class labels, and its scheduler."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers.utils.torch_utils import randn_tensor

from zeus_trt import strict_json
from zeus_trt.errors import ZeusError, say_cause
from zeus_trt.export.labels import choose_guidance, choose_labels
from zeus_trt.runtime.bundle.manifest import SCHEDULER_FILE
from zeus_trt.runtime.pipelines.rows import read_prediction
from zeus_trt.runtime.scheduler import load_scheduler

_LATENTS = ("sample", "hidden_states")
_TAKES = {*_LATENTS, "timestep", "class_labels"}


class BarePipeline(diffusers.DiffusionPipeline):
    """Samples latents with a denoiser and a scheduler alone.

    Args:
        scheduler: A diffusers scheduler.
        unet, transformer: The denoiser by its usual name; the other one is None.
    """

    def __init__(self, scheduler: Any, unet: Any, transformer: Any):
        super().__init__()
        self.register_modules(scheduler=scheduler, unet=unet, transformer=transformer)

    @property
    def denoiser(self) -> Any:
        """The component that is there."""
        return self.unet or self.transformer

    @torch.no_grad()
    def __call__(
        self,
        class_labels: Sequence[int] | None = None,
        batch_size: int = 1,
        num_inference_steps: int = 50,
        guidance_scale: float | None = None,
        generator: torch.Generator | list[torch.Generator] | None = None,
        return_dict: bool = True,
    ) -> Any:
        """Samples images.

        Args:
            class_labels: One per image, of a model of class labels; instead of ``batch_size``.
            batch_size: Number of images.
            num_inference_steps: Solver steps.
            guidance_scale: As in ``choose_guidance``. The unconditional rows have the model's last label.
            generator: One of the whole batch, or one per image.
            return_dict: Return an object with ``images`` instead of a tuple.

        Returns:
            The latents, (batch, channels, height, width).
        """
        scheduler, labels = self.scheduler, choose_labels(self.denoiser)
        guidance_scale = choose_guidance(guidance_scale, labels is not None)
        batch = batch_size if class_labels is None else len(class_labels)
        given, is_guided = {}, guidance_scale != 1
        if class_labels is not None:
            rows = [*([labels.null] * batch if labels and is_guided else []), *class_labels]
            given["class_labels"] = torch.tensor(rows, device=self._execution_device)
        scheduler.set_timesteps(num_inference_steps, device=self._execution_device)
        scale = getattr(scheduler, "scale_model_input", lambda latents, timestep: latents)
        draws = {"generator": generator} if "generator" in inspect.signature(scheduler.step).parameters else {}
        latents = self._draw(batch, generator) * getattr(scheduler, "init_noise_sigma", 1.0)
        for timestep in self.progress_bar(scheduler.timesteps):
            given[_name_latents(self.denoiser)] = scale(torch.cat([latents] * (1 + is_guided)), timestep)
            output = read_prediction(self.denoiser(**given, timestep=timestep.expand(batch * (1 + is_guided))))
            if is_guided:
                unconditional, conditional = output.chunk(2)
                output = unconditional + guidance_scale * (conditional - unconditional)
            latents = scheduler.step(output, timestep, latents, return_dict=False, **draws)[0]
        return diffusers.ImagePipelineOutput(latents) if return_dict else (latents,)

    def _draw(self, batch: int, generator: Any) -> torch.Tensor:
        config, size = self.denoiser.config, self.denoiser.config["sample_size"]
        sides = (size, size) if isinstance(size, int) else size
        shape = (batch, config["in_channels"], *sides)
        return randn_tensor(shape, generator, self._execution_device, self.denoiser.dtype)


def make_bare_pipeline(denoiser: Any, scheduler: Any, component: str = "") -> BarePipeline:
    """A pipeline of a denoiser and its scheduler.

    Args:
        denoiser: A model of diffusers.
        scheduler: A diffusers scheduler.
        component: ``unet`` or ``transformer``; by the denoiser's class by default.

    Raises:
        ZeusError: A denoiser that takes inputs beyond latents, timestep and class labels.
    """
    _check_inputs(type(denoiser))
    name = component or ("unet" if "UNet" in type(denoiser).__name__ else "transformer")
    return BarePipeline(scheduler, **{"unet": None, "transformer": None, name: denoiser})


def load_bare_pipeline(folder: Path, component: str, **settings: Any) -> BarePipeline:
    """Loads a denoiser and its scheduler from a folder in diffusers' format.

    Args:
        folder: The model folder.
        component: ``unet`` or ``transformer``, whichever is there.
        **settings: Of the denoiser's ``from_pretrained``.

    Raises:
        ZeusError: Weights that do not load, or a denoiser that takes inputs beyond latents, timestep and class labels.
    """
    denoiser = _load_denoiser(folder / component, settings)
    pipeline = make_bare_pipeline(denoiser, load_scheduler(folder / SCHEDULER_FILE), component)
    pipeline.register_to_config(_name_or_path=str(folder))
    return pipeline


def _load_denoiser(folder: Path, settings: dict[str, Any]) -> Any:
    file = folder / "config.json"
    config = strict_json.read(file, dict[str, Any], f"model config {file}", advice="Save the model again.")
    name = config.get("_class_name")
    model_class: Any = getattr(diffusers, name, None) if isinstance(name, str) and name.isidentifier() else None
    is_model = isinstance(model_class, type) and issubclass(model_class, diffusers.ModelMixin)
    if not is_model:
        raise ZeusError(
            f"model: got the class {name!r}; expected a model of diffusers {diffusers.__version__}. Update diffusers."
        )
    _check_inputs(model_class)
    try:
        return model_class.from_pretrained(folder, use_safetensors=True, **settings).eval()
    except Exception as error:  # safetensors, diffusers and the file system each raise their own
        raise ZeusError(
            f"model: got weights in {folder} that do not load ({say_cause(error)}); expected whole "
            "safetensors files of this model. Download or save the model again."
        ) from error


def _check_inputs(model_class: Any) -> None:
    parameters = inspect.signature(model_class.forward).parameters.values()
    required = {p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}
    if extra := sorted(required - _TAKES):
        raise ZeusError(
            f"model: got {model_class.__name__}, which needs {', '.join(extra)}; expected a denoiser of latents, "
            "timestep and class labels, which are all that can be made for a bare folder. Save its whole pipeline, and "
            "export that."
        )


def _name_latents(denoiser: torch.nn.Module) -> str:
    """The denoiser's name for the noisy latents."""
    return next(name for name in inspect.signature(type(denoiser).forward).parameters if name in _LATENTS)
