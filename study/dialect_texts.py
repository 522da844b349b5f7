"""Texts about a dialect: from its record, the configuration, and its own weights."""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from specification.configuration import AttentionLayer, Configuration
from specification.dialects import DIALECTS
from specification.loading.record import Dialect
from specification.loading.table import matches
from specification.parameters import Decoder, Embedding, Encoder, ImageEmbedding, LatentAttention, MultiHeadAttention
from study.checkpoints import small
from study.pages import paragraphs
from study.structures import every, per_head

if TYPE_CHECKING:
    from specification.parameters import ModelParameters

SAYINGS = {
    "norm": "layer norm (NORM-1), or one of its variants (NORM-7).",
    "norm_eps": "the number that a norm adds to the variance, under the root, so that it never divides by 0 (NORM-1).",
    "activation": "of the feed-forward network (FFN-1).",
}
"""Texts of options that the configuration does not explain."""
OF_NORMS = {
    "rms_norm": "Rows are divided by the root of their mean square. No mean is subtracted, and no bias added (NORM-7).",
    "rms_norm_plus_one": "As `rms_norm`, which divides rows by the root of their mean square, with the weight 1 + w"
    " (NORM-8).",
    "standard_deviation_norm": "Rows less their mean are divided by their unbiased deviation plus eps (NORM-7).",
}
OF_EPS = {
    "standard_deviation_norm": "What is added to the deviation, outside the root, so that nothing is divided by 0"
    " (NORM-7).",
}
"""Texts of the options `norm` and `norm_eps`, by the norm."""


def about(dialect: str) -> str:
    """What the dialect's record says of it, and of its hyperparameters."""
    record = DIALECTS[dialect]
    return f"{record.about.strip()}\n\n{inspect.getdoc(record.described.configuration) or ''}".strip()


def begun(text: str) -> str:
    """With a capital letter, and its quotes and brackets as they are."""
    return text[:1].upper() + text[1:]


@cache
def option_texts() -> dict[str, str]:
    """By option, what the configuration says about it."""
    found = dict(SAYINGS)
    for text in paragraphs(inspect.getdoc(Configuration) or ""):
        names, _, says = text.partition(": ")
        if all(name in Configuration.__dataclass_fields__ for name in names.split(", ")):
            found |= dict.fromkeys(names.split(", "), " ".join(says.split()))
    return {name: begun(text) for name, text in found.items()}


def option_text(name: str, configuration: Configuration) -> str:
    """What an option says in this configuration."""
    by_norm = {"norm": OF_NORMS, "norm_eps": OF_EPS}.get(name, {})
    return by_norm.get(configuration.norm, option_texts()[name])


def structure_facts(dialect: str, parameters: ModelParameters) -> dict[str, str]:
    """What the weights of its small model say by themselves, without an option."""
    attentions, embeddings = every(MultiHeadAttention, parameters), every(Embedding, parameters)
    stacks = [*stacks_of(parameters)]
    latents = every(LatentAttention, parameters)
    parts = [*attentions[0][:3]] if attentions else [latents[0].query, latents[0].key_value_down]
    projections = [part[0] if isinstance(part, list) else part for part in parts]
    given = "tokens" if embeddings else "images" if every(ImageEmbedding, parameters) else "embeddings"
    facts = {"structure": f"{type(parameters).__name__}, called with {given}"}
    if stacks:
        facts["norm after the last block"] = yes(stacks[0].norm is not None)
    if embeddings:
        facts["norm after the embedding"] = yes(embeddings[0].norm is not None)
        facts["token types"] = yes(embeddings[0].token_types is not None)
    biased, path = (
        all(part.bias is not None for part in projections),
        "key_value_down.bias" if latents else "query.bias",
    )
    facts["biases of query, key, value"] = yes(biased) + otherwise(DIALECTS[dialect], path, biased)
    facts["projections"] = "one for each head" if per_head(parameters) else "one for all heads"
    return facts


def stacks_of(parameters: ModelParameters) -> list[Any]:
    return every(Encoder, parameters) + every(Decoder, parameters)


def yes(true: bool) -> str:
    return "yes" if true else "no"


def optional(dialect: str) -> tuple[list[str], list[str]]:
    """Names that not every checkpoint has, as patterns: those that the small one has, and those that it lacks.

    A name that is its own pattern is a part of one layer or the output, of which only the latter is told.
    """
    record = DIALECTS[dialect]
    entries, prefix = record.example_entries(), (*record.prefixes, "")[0]
    found: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for row in record.example_table():
        patterns = [one for one in row.when if "*" in one or row.paths == ("output.weight",)]
        found[prefix + row.theirs in entries].update(dict.fromkeys(patterns))
    return list(found[True]), list(found[False])


def otherwise(record: Dialect, path: str, here: bool) -> str:
    """When a checkpoint is another than the small one in the array at the end of this path; empty for never."""
    rows = [row for row in record.example_table() if row.when and any(one.endswith(path) for one in row.paths)]
    told = {} if record.config is None else record.config.entries
    keys = [key for key, name in told.items() if any(matches(row.when, name) for row in rows)]
    if keys:
        return f", unless {keys[0]} is {'false' if here else 'true'} in config.json"
    return f"; {'not every checkpoint has' if here else 'some checkpoints have'} them" if rows else ""


def call(dialect: str) -> tuple[str, str]:
    """The line that loads a checkpoint, and the one that calls the model."""
    one = small()[dialect]
    told = "".join(f", {name}={written(value)}" for name, value in one.hyperparameters.items())
    given = [*one.inputs, *(f"{name}={name}" for name in one.options)]
    return f'load("{dialect}", "model.safetensors"{told})', f"model({', '.join(given)})"


def hyperparameters(dialect: str) -> list[str]:
    """What `load` takes beside the checkpoint, with defaults."""
    given = DIALECTS[dialect].hyperparameters
    return [
        name if default is inspect.Parameter.empty else f"{name}={written(default)}" for name, default in given.items()
    ]


def written(value: object) -> str:
    """A value as it is written in code, without the fields that have their defaults."""
    if isinstance(value, tuple):
        return f"({', '.join(map(written, value))}{',' if len(value) == 1 else ''})"
    if not is_dataclass(value):
        return repr(value)
    told = [
        (field.name, getattr(value, field.name))
        for field in fields(value)
        if field.default != getattr(value, field.name)
    ]
    return f"{type(value).__name__}({', '.join(f'{name}={written(one)}' for name, one in told)})"


def in_words(value: object) -> str:
    """What an option says: the layers of attention in words, everything else as it is."""
    if not isinstance(value, tuple):
        return str(value)
    return "; ".join(dict.fromkeys(map(layer_in_words, value))) or "no rotation, no window"


def layer_in_words(layer: AttentionLayer) -> str:
    """How a block's self-attention rotates queries and keys, and how far it looks."""
    rotary, window = layer.rotary, layer.window
    found = ["no rotation" if rotary is None else f"rotation with base {rotary.base:,.0f}"]
    if rotary is not None and rotary.width is not None:
        found.append(f"of the first {rotary.width} columns of a head")
    if rotary is not None and rotary.scaling is not None:
        found.append(f"frequencies by {type(rotary.scaling).__name__}")
    found.append("no window" if window is None else f"a window of {window[0]} keys before and {window[1]} after")
    return ", ".join(found)
