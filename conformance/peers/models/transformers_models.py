"""transformers: its own models, loaded as `from_pretrained` loads them, with kinds of attention and of experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers

OLDER = ("rope_theta", "rope_scaling")
"""Keys that stand beside `rope_parameters` for readers before transformers 5."""
Kinds = dict[str, str]
"""What `from_pretrained` is told to use, of the ways in which a model can compute the same."""


def load(kinds: Kinds, config: dict[str, Any], state_dict: dict[str, Any]) -> Any:
    """Return the model that the config names; ValueError where an entry is missing or left over."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind = getattr(transformers, config["architectures"][0])
    drop = OLDER if config.get("rope_parameters") else ()
    given = kind.config_class.from_dict({name: value for name, value in config.items() if name not in drop})
    entries = {name: torch.from_numpy(array) for name, array in state_dict.items()}
    model, told = kind.from_pretrained(None, config=given, state_dict=entries, output_loading_info=True, **kinds)
    wrong = {name: sorted(found) for name, found in told.items() if found and not unused(found)}
    if wrong:
        raise ValueError(f"transformers does not load this checkpoint: {wrong}")
    return model.eval()


def unused(names: Any) -> bool:
    """Whether these are entries of a pooler alone, whose result is not the hidden states."""
    return all("pooler." in str(name) for name in names)


def build_encoder(kinds: Kinds, config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = load(kinds, config, state_dict)

    @torch.no_grad()
    def encode(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        return model(tokens, attention_mask=key_padding).last_hidden_state

    return encode


def build_bert(kinds: Kinds, config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = load(kinds, config, state_dict)

    @torch.no_grad()
    def encode(
        tokens: torch.Tensor, key_padding: torch.Tensor | None = None, token_types: torch.Tensor | None = None
    ) -> Any:
        return model(tokens, attention_mask=key_padding, token_type_ids=token_types).last_hidden_state

    return encode


def build_language_model(kinds: Kinds, config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    """Its `step` gives the cache of one call to the next."""
    model = load(kinds, config, state_dict)

    @torch.no_grad()
    def predict(tokens: torch.Tensor, key_padding: torch.Tensor | None = None) -> Any:
        return model(tokens, attention_mask=key_padding, use_cache=False).logits

    @torch.no_grad()
    def step(tokens: torch.Tensor, cache: Any = None) -> Any:
        result = model(tokens, past_key_values=cache, use_cache=True)
        return result.logits, result.past_key_values

    predict.step = step  # type: ignore[attr-defined]
    return predict


def build_t5(kinds: Kinds, config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = load(kinds, config, state_dict)

    @torch.no_grad()
    def predict(
        source: torch.Tensor, target: torch.Tensor, source_key_padding: torch.Tensor | None = None,
        target_key_padding: torch.Tensor | None = None,
    ) -> Any:  # fmt: skip
        masks = {"attention_mask": source_key_padding, "decoder_attention_mask": target_key_padding}
        return model(source, decoder_input_ids=target, use_cache=False, **masks).logits

    return predict


def build_vit(kinds: Kinds, config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    model = load(kinds, config, state_dict)

    @torch.no_grad()
    def encode(images: torch.Tensor) -> Any:
        return model(images).last_hidden_state

    return encode


BUILDERS: dict[str, Callable[..., Any]] = {
    "bert": build_bert,
    "modernbert": build_encoder,
    "t5": build_t5,
    "vit": build_vit,
}
"""By the config's model type; all others are language models."""


def build(kinds: Kinds, config: dict[str, Any], state_dict: dict[str, Any]) -> Callable[..., Any]:
    return BUILDERS.get(config["model_type"], build_language_model)(kinds, config, state_dict)


def choose_kinds(attention: str, **more: str) -> Callable[..., Any]:
    return partial(build, {"attn_implementation": attention, **more})


eager, sdpa = choose_kinds("eager"), choose_kinds("sdpa")
eager_loop, sdpa_loop = (choose_kinds(attention, experts_implementation="eager") for attention in ("eager", "sdpa"))
"""With eager experts, a loop over them; the default is `grouped_mm`."""
