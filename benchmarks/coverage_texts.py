"""Tiny random text and image encoders of transformers, with a tokenizer of single letters."""

import functools
import inspect
import string
from collections.abc import Mapping
from typing import Any

import transformers

WIDTH = 32  # of every embedding
LATENT = 4  # channels of latents
LENGTH = 77  # of prompts, in tokens
_WORDS = ("<pad>", "<unk>", "<s>", "</s>", *string.printable)
VOCABULARY = 256

SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "d_model": WIDTH, "projection_dim": WIDTH, "project_dim": WIDTH,
    "d_ff": 32, "d_kv": 16,
    "intermediate_size": 32, "num_hidden_layers": 2, "num_layers": 2, "num_attention_heads": 2, "num_heads": 2,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096, "n_embd": WIDTH, "n_layer": 1,
        "n_head": 2,
    "depth": 1, "out_hidden_size": WIDTH, "embed_dim": WIDTH, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0,
    "decoder_start_token_id": 0,
}  # fmt: skip
"""Values by the name of a config's attribute."""

TEMPLATE = "{% for message in messages %}{{ message['role'] }}{{ message['content'] }}{% endfor %}"


@functools.cache
def build_tokenizer() -> Any:
    """A tokenizer whose words are single letters."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    model = Tokenizer(models.WordLevel({word: place for place, word in enumerate(_WORDS)}, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    model.decoder = decoders.Fuse()
    model.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, model_max_length=LENGTH, pad_token="<pad>", unk_token="<unk>", bos_token="<s>",
        eos_token="</s>", chat_template=TEMPLATE,
    )  # fmt: skip


def build_processor() -> Any:
    """The tokenizer, instead of a processor of words and pictures: it reads prompts without pictures."""
    tokenizer = build_tokenizer()
    tokenizer.tokenizer, apply = tokenizer, tokenizer.apply_chat_template
    tokenizer.apply_chat_template = lambda *given, **options: _list_rows(apply(*given, **options))
    for name in ("image_token", "video_token"):
        setattr(tokenizer, name, "<unk>")
    return tokenizer


def _list_rows(tokens: Any) -> Any:
    """Tokens of one conversation as a processor returns them: a list of rows."""
    return [tokens] if isinstance(tokens, list) and isinstance(tokens[0], int) else tokens


def build(kind: Any, transformer: Any = None) -> Any:
    """A tokenizer, an image processor or a network of a class of transformers, or of one that is like these.

    A network of an abstract class is one that the pipeline's ``transformer`` reads.
    """
    name = kind.__name__
    if "Tokeniz" in name or name in ("PythonBackend", "TokenizersBackend"):
        return build_tokenizer()
    if name in ("AutoProcessor", "ProcessorMixin") or name.endswith(("VLProcessor", "GlmImageProcessor")):
        return build_processor()
    if name == "CLIPProcessor":
        return kind(transformers.CLIPImageProcessor(), build_tokenizer())
    if "Processor" in name or "FeatureExtractor" in name:
        return kind()
    name = _STAND_BESIDE.get((name, getattr(transformer, "__name__", "")), _STAND_FOR.get(name, name))
    kind = kind if kind.__module__.startswith("diffusers") else getattr(transformers, name, kind)
    if name in _ENCODER_OF:
        return kind(build_config(getattr(transformers, _ENCODER_OF[name])).encoder).eval()
    config = transformers.CLIPVisionConfig if name == "PaintByExampleImageEncoder" else kind.config_class
    made = build_config(config, **_CHANGES.get(name, {}))
    if not hasattr(made, "pad_token_id"):
        made.pad_token_id = 0  # published configs have one, and pipelines read it
    return kind(made).eval()


_ENCODER_OF = {"T5Gemma2Encoder": "T5Gemma2Config", "T5GemmaEncoder": "T5GemmaConfig"}
"""Configs of whole networks, by the class of the encoder that reads a part of them."""

_STAND_FOR = {
    "PreTrainedModel": "Qwen3Model", "Gemma2PreTrainedModel": "Gemma2Model", "GemmaPreTrainedModel": "GemmaModel",
}  # fmt: skip
"""Classes of networks that stand for an abstract one."""

_STAND_BESIDE = {("PreTrainedModel", "Ideogram4Transformer2DModel"): "Qwen3VLModel"}
"""The same beside a transformer that reads another one."""


_CHANGES: Mapping[str, Mapping[str, Any]] = {
    "DPTForDepthEstimation": {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
        "neck_hidden_sizes": [8] * 4, "fusion_hidden_size": 8},
    "MultilingualCLIP": {"transformerDimSize": WIDTH, "imageDimSize": WIDTH},
    "SmolLM3ForCausalLM": {"vocab_size": 128256}, "T5GemmaEncoderModel": {"is_encoder_decoder": False},
        "Qwen3ForCausalLM": {"num_hidden_layers": 28}, "Mistral3ForConditionalGeneration": {"num_hidden_layers": 31},
    "Qwen3VLForConditionalGeneration": {"num_hidden_layers": 36}, "Qwen3VLModel": {"num_hidden_layers": 36},
}  # fmt: skip
"""Further values by the name of a class: pipelines read the outputs of just these layers."""


def build_config(kind: Any, **changes: Any) -> Any:
    """A config whose sizes, and those of the configs in it, are small by their names."""
    return kind(**_shrink(kind, changes))


def _shrink(kind: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    default, parameters = kind(), inspect.signature(kind.__init__).parameters
    default.allow_global_per_layer_attribute_access = True  # else a config of unlike layers raises for these
    values = {**SIZES, **changes}
    small = {name: value for name, value in values.items() if isinstance(getattr(default, name, None), int | list)}
    small |= {name: value for name, value in changes.items() if name in parameters}
    if "VLText" in kind.__name__ or "VLConfig" in kind.__name__:
        small["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    for name in getattr(kind, "sub_configs", {}):
        if isinstance(getattr(default, name, None), transformers.PreTrainedConfig):
            small[name] = _shrink(type(getattr(default, name)), {} if "vision" in name else changes)
    return small
