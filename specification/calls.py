"""What a model is called with: padding as an array of real tokens, made into masks, and inputs that may be left out.

The functions take the package's own as their first argument. Whatever else they are given is handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypedDict

from specification import checks
from specification.arrays import Array
from specification.blocks import attention_options
from specification.checks.shapes import check_array
from specification.configuration import Configuration
from specification.dropout import Dropout, StackDropout, TransformerDropout
from specification.masks import KeyPadding, Mask, both
from specification.parameters import Classifier, Decoder, Encoder, LanguageModel, MultiHeadAttention, Transformer


class Functions(NamedTuple):
    """A package's functions of which models are made."""

    encoder: Callable[..., Any]
    decoder: Callable[..., Any]
    language_model: Callable[..., Any]
    transformer: Callable[..., Any]
    classifier: Callable[..., Any]
    attend: Callable[..., Any]
    multi_head_attention: Callable[..., Any]


def model_calls(functions: Functions) -> dict[type, Callable[..., Any]]:
    """Return, by the structure of the parameters, the function (parameters, *inputs, configuration, **options)."""
    return {
        Transformer: partial(translation, functions),
        Classifier: functions.classifier,
        LanguageModel: partial(next_tokens, functions),
        Encoder: partial(hidden_states, functions),
        Decoder: partial(decoder_states, functions),
        MultiHeadAttention: partial(multi_head, functions),
    }


class ModelOptions(TypedDict, total=False):
    """What models may be called with by name, each model with those of its function."""

    key_padding: Array | None
    source_key_padding: Array | None
    target_key_padding: Array | None
    token_types: Array | None
    keep: Array | None
    mask: Mask | Array | None
    source_mask: Mask | Array | None
    target_mask: Mask | Array | None
    memory_mask: Mask | Array | None
    dropout: Dropout | StackDropout | TransformerDropout | None


def kept_keys(keep: Array | None) -> KeyPadding | None:
    """The mask of an array in which True is a real token and False is padding."""
    return None if keep is None else KeyPadding(keep)


def hidden_states(
    functions: Functions,
    parameters: Encoder,
    x: Array,
    key_padding: Array | None = None,
    token_types: Array | None = None,
    *,
    mask: Mask | Array | None = None,
    **options: object,
) -> Any:
    """`encoder`, with padding as an array: True is a real token, False is padding."""
    mask = both(mask, kept_keys(key_padding))
    return functions.encoder(parameters, x, mask=mask, token_types=token_types, **options)


def decoder_states(
    functions: Functions,
    parameters: Decoder,
    x: Array,
    memory: Array | None = None,
    *,
    key_padding: Array | None = None,
    mask: Mask | Array | None = None,
    **options: object,
) -> Any:
    """`decoder`, with padding as an array, as in `hidden_states`."""
    return functions.decoder(parameters, x, memory, mask=both(mask, kept_keys(key_padding)), **options)


def next_tokens(
    functions: Functions,
    parameters: LanguageModel,
    tokens: Array,
    key_padding: Array | None = None,
    *,
    mask: Mask | Array | None = None,
    **options: object,
) -> Any:
    """`language_model`, with padding as an array, as in `hidden_states`."""
    return functions.language_model(parameters, tokens, mask=both(mask, kept_keys(key_padding)), **options)


def translation(
    functions: Functions,
    parameters: Transformer,
    source: Array,
    target: Array,
    *,
    source_key_padding: Array | None = None,
    target_key_padding: Array | None = None,
    source_mask: Mask | Array | None = None,
    target_mask: Mask | Array | None = None,
    memory_mask: Mask | Array | None = None,
    **options: object,
) -> Any:
    """`transformer`, with padding as arrays, as in `hidden_states`; the source's is that of the memory too."""
    source_padding = kept_keys(source_key_padding)
    masks: Any = {
        "source_mask": both(source_mask, source_padding),
        "target_mask": both(target_mask, kept_keys(target_key_padding)),
        "memory_mask": both(memory_mask, source_padding),
    }
    return functions.transformer(parameters, source, target, **masks, **options)


def multi_head(
    functions: Functions,
    parameters: MultiHeadAttention,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    *,
    configuration: Configuration,
    mask: Mask | Array | None = None,
    dropout: Dropout | None = None,
) -> Any:
    """`multi_head_attention`; the key is the query and the value the key unless given. dropout: of the weights.

    With sinks, norms of queries or keys, a window or a rotation it is a block's attention, whose values are the keys'.
    """
    key = query if key is None else key
    value = key if value is None else value
    checks.site("dropout", dropout)
    (layer,) = configuration.layers(1)
    if checks.of_a_block(parameters, layer):
        checks.one_memory(key, value)
        return functions.attend(parameters, query, key, mask, dropout, configuration, layer)
    width = check_array("query", query, "Shaped", "B Q E")["E"]
    options = attention_options(width, mask, dropout, configuration)
    return functions.multi_head_attention(parameters, query, key, value, num_heads=configuration.num_heads, **options)
