"""The class labels of a denoiser, as its config has them, and the guidance that they make possible."""

from typing import Any

from zeus_trt.errors import ZeusError
from zeus_trt.runtime.bundle.manifest import Labels

LABEL_GUIDANCE = 2.0


def count_labels(denoiser: Any) -> int | None:
    """Size of the class embedding, the null class included; None for a denoiser without class labels."""
    config = getattr(denoiser, "config", None)  # of diffusers, or of transformers
    return getattr(config, "num_class_embeds", None) or getattr(config, "num_embeds_ada_norm", None)


def choose_labels(denoiser: Any, null: int | None = None) -> Labels | None:
    """The class labels of a denoiser; None where it has none.

    Args:
        denoiser: A module with diffusers' config.
        null: Label of the unconditional rows of guidance; the last one by default.

    Raises:
        ZeusError: A null label that the denoiser does not have.
    """
    count = count_labels(denoiser)
    if count is None:
        if null is not None:
            raise ZeusError(f"null_label: got {null} for a model without class labels. Leave it out.")
        return None
    null = count - 1 if null is None else null
    if not 0 <= null < count:
        raise ZeusError(
            f"null_label: got {null}; expected 0..{count - 1}, the labels of this model. Choose one of them."
        )
    return Labels(count=max(null, 1) if null == count - 1 else count, null=null)


def choose_guidance(asked: float | None, has_labels: bool, reads_scale: bool = False) -> float:
    """The scale that is asked for; by default ``LABEL_GUIDANCE`` for models of class labels, 1 (off) for others.

    This is the one default of bundles and bare models in ``run``, ``compare`` and ``calibrate``. A pipeline has its own
    default. ``Session.generate`` guides only where it is asked to: its default is 1.

    Args:
        asked: The scale, if one is asked for.
        has_labels: Whether the model has class labels, and so unconditional rows.
        reads_scale: Whether the denoiser reads the scale as an input.

    Raises:
        ZeusError: A scale for a model that nothing could guide.
    """
    if asked is None:
        return LABEL_GUIDANCE if has_labels else 1.0
    if asked != 1.0 and not has_labels and not reads_scale:
        raise ZeusError(
            f"guidance_scale: got {asked:g} for a model without class labels; expected 1, since it has no "
            "unconditional rows. Leave it out."
        )
    return asked
