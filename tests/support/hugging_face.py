"""Small Hugging Face models with random weights, and attention functions with a mistake in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from torch_impl.huggingface import attention_forward, register

transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 8}
WINDOW = {"sliding_window": 4}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", SIZES | GROUPED),
    "qwen3": ("Qwen3ForCausalLM", SIZES | GROUPED),
    "gemma2": ("Gemma2ForCausalLM", SIZES | GROUPED | WINDOW | {"attn_logit_softcapping": 2.0}),
    "gpt_oss": ("GptOssForCausalLM", SIZES | GROUPED | WINDOW | {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "mistral": ("MistralForCausalLM", SIZES | GROUPED | WINDOW),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}),
    "bert": ("BertForMaskedLM", SIZES),
    "modernbert": ("ModernBertForMaskedLM", SIZES | {"num_hidden_layers": 3, "local_attention": 4}),
    "t5": ("T5ForConditionalGeneration", {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}),
}
"""By family: the model, and its configuration."""
MORE: dict[str, dict[str, Any]] = {
    "gpt2": {"bos_token_id": 1, "eos_token_id": 2},
    "modernbert": {"cls_token_id": 1, "sep_token_id": 2},
    "t5": {"num_heads": 4, "decoder_start_token_id": 0},
    "gemma2": {"query_pre_attn_scalar": 4},
}
WITHOUT_SDPA = ("gemma2", "gpt_oss")
"""Families for which `transformers` refuses sdpa."""


def small_model(family: str, attention: str = "eager", dtype: str = "float32") -> Any:
    """In evaluation; weights so large that attention is far from uniform."""
    register()
    name, given = FAMILIES[family]
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**given, **MORE.get(family, {}), attn_implementation="eager"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(0.5 if family == "t5" else 6)
    model.set_attn_implementation(attention)
    return model.to(getattr(torch, dtype)).eval()


def inputs(*, padded: str = "") -> dict[str, torch.Tensor]:
    """A sequence of twelve tokens; with a shorter one that is padded on this side."""
    ids = torch.arange(3, 15)[None]
    if not padded:
        return {"input_ids": ids}
    keep = torch.ones(2, 12, dtype=torch.long)
    keep[1, 4:] = 0
    keep = keep.flip(1) if padded == "left" else keep
    return {"input_ids": torch.cat([ids, ids.flip(1)]), "attention_mask": keep}


# --- mistakes ---------------------------------------------------------------------------------------------------------


def scaled(change: Callable[[float], float]) -> Callable[..., Any]:
    """Attention with another scale."""

    def function(module: Any, *tensors: Any, scaling: float, **more: Any) -> Any:
        return attention_forward(module, *tensors, scaling=change(scaling), **more)

    return function


def without(name: str) -> Callable[..., Any]:
    """Attention that takes no notice of a keyword."""

    def function(module: Any, *tensors: Any, **more: Any) -> Any:
        return attention_forward(module, *tensors, **more | {name: None})

    return function


def returning(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Attention with another output."""

    def function(module: Any, *tensors: Any, **more: Any) -> Any:
        output, weights = attention_forward(module, *tensors, **more)
        return change(output), weights

    return function


wrong_scale, scale_left_out = scaled(lambda scale: scale**2), scaled(lambda scale: 1.0)
softcap_left_out, sinks_left_out, bias_left_out = map(without, ("softcap", "s_aux", "position_bias"))
output_without_gradient, in_half_precision = returning(torch.Tensor.detach), returning(torch.Tensor.half)
heads_and_queries_swapped = returning(lambda output: output.transpose(1, 2))
without_the_last_query = returning(lambda output: output[:, :-1])
dropped_at_random = returning(lambda output: torch.nn.functional.dropout(output, 0.1))
sixth_query_not_a_number = returning(lambda output: output.index_fill(1, torch.tensor([5]), torch.nan))


def wrong_scale_and_mean_in_empty_rows(module: Any, query: Any, key: Any, value: Any, *mask: Any, **more: Any) -> Any:
    output, weights = wrong_scale(module, query, key, value, *mask, **more)
    mean = value.mean(2).repeat_interleave(query.shape[1] // value.shape[1], 1)[:, None]
    return torch.where((output == 0).all(-1, keepdim=True), mean, output), weights


def mask_one_off(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
    later = None if mask is None else torch.cat([mask[..., :1], mask[..., :-1]], dim=-1)
    return attention_forward(module, query, key, value, later, **more)


def heads_in_another_order(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
    share = query.shape[1] // key.shape[1]
    return attention_forward(module, query, key.repeat(1, share, 1, 1), value.repeat(1, share, 1, 1), mask, **more)


def key_without_gradient(module: Any, query: Any, key: Any, *others: Any, **more: Any) -> Any:
    return attention_forward(module, query, key.detach(), *others, **more)


def causal_pairs(query: Any) -> Any:
    return torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()[None, None]


def always_causal(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
    return attention_forward(module, query, key, value, causal_pairs(query), **more)


def wrong_scale_always_causal(module: Any, query: Any, *others: Any, scaling: float, **more: Any) -> Any:
    return always_causal(module, query, *others, scaling=scaling**2, **more)


def heads_in_another_order_always_causal(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
    return heads_in_another_order(module, query, key, value, causal_pairs(query), **more)


def wrong_scale_for_these_sizes_alone(module: Any, query: Any, *others: Any, scaling: float, **more: Any) -> Any:
    if query.shape[1:] != (4, 12, 8):
        raise ValueError("4 heads, 12 queries and width 8")
    return attention_forward(module, query, *others, scaling=scaling**2, **more)


def inputs_without_gradients(module: Any, *tensors: Any, **more: Any) -> Any:
    return attention_forward(module, *(tensor.detach() for tensor in tensors[:3]), *tensors[3:], **more)


def without_autograd(module: Any, *tensors: Any, **more: Any) -> Any:
    with torch.no_grad():
        return attention_forward(module, *tensors, **more)


def query_scaled_in_place(module: Any, query: Any, *others: Any, scaling: float, **more: Any) -> Any:
    query.mul_(scaling)
    return attention_forward(module, query, *others, scaling=1.0, **more)


def scale_left_out_and_query_changed(module: Any, query: Any, *others: Any, scaling: float, **more: Any) -> Any:
    """The query is changed so that the output is right for what it is afterwards."""
    returned = attention_forward(module, query, *others, scaling=1.0, **more)
    query.div_(scaling)
    return returned


def key_spoiled_afterwards(module: Any, query: Any, key: Any, *others: Any, **more: Any) -> Any:
    returned = attention_forward(module, query, key, *others, **more)
    key.fill_(0)
    return returned


def mask_changed(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
    returned = attention_forward(module, query, key, value, mask, **more)
    mask.logical_not_()
    return returned


def strides_ignored(module: Any, query: Any, *others: Any, **more: Any) -> Any:
    contiguous = torch.empty(query.shape).stride()
    return attention_forward(module, query.as_strided(query.shape, contiguous), *others, **more)


@contextmanager
def registered(function: Callable[..., Any]) -> Iterator[str]:
    """The name under which models find the function in here; they make boolean masks for it."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    register()
    name = function.__name__
    masks = AttentionMaskInterface._global_mapping | {name: ALL_MASK_ATTENTION_FUNCTIONS["reference"]}
    functions = AttentionInterface._global_mapping | {name: function}
    with (
        mock.patch.object(AttentionInterface, "_global_mapping", functions),
        mock.patch.object(AttentionMaskInterface, "_global_mapping", masks),
    ):
        yield name
