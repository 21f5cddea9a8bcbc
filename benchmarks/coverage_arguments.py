"""What pipelines are called with that cannot be made up."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image

SIZE = 64
ARGUMENTS: Mapping[str, Any] = {
    "action": "w-80",
    "audio_modality_scale": 1.0,
    "audio_stg_scale": 0.0,
    "clip_skip": None,
    "gligen_boxes": [[0.1, 0.1, 0.6, 0.6]],
    "gligen_phrases": ["a cat"],
    "intermediate_timesteps": None,
    "intrinsics": [64.0, 64.0, 32.0, 32.0],
    "mask_end_seconds": 2.0,
    "mask_start_seconds": 1.0,
    "modality_scale": 1.0,
    "overlap_history": 5,
    "stg_scale": 0.0,
    "t0": 1,
    "t1": 2,
    "token_indices": [2],
}
"""Values of arguments that cannot be made up from their names and kinds alone, or that stand in the way."""
BESIDE: Mapping[str, Mapping[str, Any]] = {"ControlNetUnionModel": {"control_mode": 0}}
"""Further ones, for pipelines with a component of a class."""


def _draw(seed: int = 0, size: int = SIZE) -> Any:
    """A PIL image of noise."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8))


def _invert(pipeline: Any) -> dict[str, Any]:
    pipeline.invert(image=_draw(), num_inversion_steps=10)
    return {"editing_prompt": ["a cat"]}


def _invert_to_latents(pipeline: Any) -> dict[str, Any]:
    kept = pipeline.invert("a cat", _draw(), num_inference_steps=8, output_type="latent")
    return {"num_inference_steps": 8, "image_latents": kept.latents, "mask_image": torch.ones(1, 1, 8, 8)}


_CLOZE = {
    "task_prompt": "a task",
    "content_prompt": "a cat",
    "image": [[_draw(1), _draw(2)], [_draw(3), None]],
    "generator": torch.Generator().manual_seed(0),
}
_UNCLIP = {"decoder_num_inference_steps": 8, "super_res_num_inference_steps": 4}


def _add_guidance(pipeline: Any) -> dict[str, Any]:
    """Has the config what the pipeline reads, and no transformer of its kind has."""
    pipeline.transformer.register_to_config(guidance_embeds=False)
    return {}


OF_PIPELINE: Mapping[str, Mapping[str, Any] | Callable[[Any], Mapping[str, Any]]] = {
    "AnimateDiffSparseControlNetPipeline": {"conditioning_frames": [_draw()]},
    "BriaFiboEditPipeline": {"prompt": json.dumps({"edit_instruction": "a dog"}), "image": _draw()},
    "ChromaInpaintPipeline": _add_guidance,
    "Cosmos2_5_TransferPipeline": {"controls": [_draw(seed) for seed in range(9)], "num_frames_per_chunk": 9},
    "Cosmos3OmniPipeline": {"action": None},
    "CosmosVideoToWorldPipeline": {"image": _draw()},
    "GlmImagePipeline": {"prior_token_ids": torch.zeros(1, 16, dtype=torch.long)},
    "Kandinsky5I2VPipeline": {"num_frames": 17},
    "LEditsPPPipelineStableDiffusion": lambda pipeline: {**_invert(pipeline), "use_intersect_mask": False},
    "LEditsPPPipelineStableDiffusionXL": _invert,
    "LTX2ImageToVideoPipeline": {"image_crf": 0},
    "SanaWMPipeline": {"image": _draw()},
    "StableAudio3InpaintPipeline": {"audio": torch.zeros(1, 2, 1280)},
    "StableDiffusionAttendAndExcitePipeline": {"attn_res": (8, 8)},
    "StableDiffusionDiffEditPipeline": _invert_to_latents,
    "VisualClozeGenerationPipeline": _CLOZE,
    "VisualClozePipeline": {**_CLOZE, "upsampling_height": SIZE, "upsampling_width": SIZE},
    "StableCascadeCombinedPipeline": {"height": 96, "width": 96},
    "WuerstchenCombinedPipeline": {"height": 96, "width": 96},
    "UnCLIPImageVariationPipeline": _UNCLIP,
    "UnCLIPPipeline": {**_UNCLIP, "prior_num_inference_steps": 8},
}
"""Further ones of a class alone, or what makes them of a pipeline."""
