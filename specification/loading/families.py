"""Checkpoints that belong to no dialect, or to another one than was given, known by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from specification.loading.record import Dialect, Variant
from specification.loading.table import any_of, numbered


class Family(NamedTuple):
    """Models that no dialect covers.

    names: entries of which its checkpoints have one, in which `*` stands for any text. model_types: what a config.json
    calls such models. operations: what of it the judge knows, one by one. related: whether a dialect has such names
    too, so that they are named only where that dialect does not know most of a checkpoint's names.
    """

    names: tuple[str, ...]
    model_types: tuple[str, ...]
    operations: str
    related: bool = False


POST_NORM = "multi_head_attention, layer_norm, feed_forward and embedding"
PRE_NORM = "attention, layer_norm, feed_forward and embedding"
RMS = "attention, rms_norm, rotary_embedding, gated_feed_forward and embedding"

UNCOVERED = {
    "ALBERT": Family(("*albert_layer_groups.*",), ("albert",), POST_NORM),
    "BART (Marian, mBART, Pegasus, Whisper, ...)": Family(
        ("*decoder.layers.0.encoder_attn.q_proj.weight",),
        ("bart", "blenderbot", "m2m_100", "marian", "mbart", "pegasus", "whisper"),
        POST_NORM,
    ),
    "BLOOM or Falcon": Family(("*h.0.self_attention.query_key_value.weight",), ("bloom", "falcon"), PRE_NORM),
    "CLIP": Family(("*text_model.encoder.layers.0.*",), ("clip",), "attention, layer_norm and embedding"),
    "DeBERTa": Family(
        ("*attention.self.query_proj.weight", "*attention.self.in_proj.weight"),
        ("deberta", "deberta-v2"),
        "layer_norm, feed_forward and embedding",
    ),
    "ELECTRA": Family(("electra.*",), ("electra",), POST_NORM),
    "GPT-J": Family(("*h.0.attn.q_proj.weight",), ("gptj",), PRE_NORM),
    "GPT-Neo": Family(("*h.0.attn.attention.q_proj.weight",), ("gpt_neo",), PRE_NORM),
    "Gemma 3 with images, or another model of several kinds": Family(
        ("*language_model.layers.0.*", "*language_model.model.layers.0.*"),
        ("llava", "gemma3", "mistral3", "paligemma", "qwen2_vl", "qwen2_5_vl"),
        RMS,
    ),
    "Mamba": Family(("*layers.0.mixer.A_log",), ("mamba", "mamba2"), "rms_norm, silu and embedding"),
    "Qwen 2 MoE, Phi 3.5 MoE or another mixture of experts": Family(
        ("*layers.0.mlp.shared_expert_gate.weight",),
        ("phimoe", "qwen2_moe", "qwen3_next"),
        RMS,
    ),
    "MPNet": Family(("*layer.0.attention.attn.q.weight",), ("mpnet",), PRE_NORM),
    "OPT": Family(("*decoder.layers.0.self_attn_layer_norm.weight",), ("opt",), PRE_NORM),
    "relatives of LLaMA (Cohere, GLM, Granite, StableLM, ...)": Family(
        ("*layers.0.mlp.gate_proj.weight", "*layers.0.mlp.gate_up_proj.weight"),
        ("cohere", "cohere2", "exaone4", "glm", "glm4", "granite", "ministral", "olmo", "olmo3", "stablelm"),
        RMS,
        related=True,
    ),
    "relatives of T5 (LongT5, UMT5, ...)": Family(
        ("*block.0.layer.0.SelfAttention.q.weight", "*block.0.layer.0.LocalSelfAttention.q.weight"),
        ("longt5", "umt5"),
        "attention, rms_norm, feed_forward and embedding",
        related=True,
    ),
    "relatives of ViT (DeiT, ...)": Family(
        ("*embeddings.patch_embeddings.projection.weight",),
        ("beit", "deit", "dinov2"),
        "attention, layer_norm and feed_forward",
        related=True,
    ),
    "XLNet": Family(("*layer.0.rel_attn.q",), ("xlnet",), "layer_norm, feed_forward and embedding"),
}
"""Well-known families that no dialect covers; a checkpoint is of the first whose names it has."""


def judgeable(family: str) -> str:
    """Say that no dialect covers a family, one of `UNCOVERED`, and what of it can be judged."""
    return f"{family}, which no dialect covers; conformance check judges its {UNCOVERED[family].operations} one by one"


def of_model_type(model_type: str) -> str | None:
    """Recognise a family of models that no dialect covers by the model_type of a config.json."""
    return next((family for family, one in UNCOVERED.items() if model_type in one.model_types), None)


def uncovered(names: Collection[str]) -> str | None:
    """Recognise a family of models that no dialect covers by the names of a checkpoint's entries."""
    return next((family for family, one in UNCOVERED.items() if any_of(one.names, names)), None)


def covered(dialects: Iterable[Dialect], names: Collection[str]) -> list[str]:
    """Find the dialects that know the most of a checkpoint's names; several have the same, as Llama and Gemma."""
    known = {one.name: max(known_names(one, variant, names) for variant in one.variants) for one in dialects}
    most = max(known.values(), default=0)
    return [name for name, count in known.items() if count == most > 0]


def names_of(dialects: Collection[str]) -> str:
    """Say that a checkpoint has the names of dialects."""
    return f"its names are those of dialect {' or '.join(map(repr, dialects))}"


def known_names(dialect: Dialect, variant: Variant, names: Collection[str]) -> int:
    """Count the names of a variant's first layer that a checkpoint has; 0 where one is missing that every one has.

    So is a mark of the variant.
    """
    short = {name.removeprefix(prefix) for name in names for prefix in (*dialect.prefixes, "")}
    rows = list(numbered(variant.table, lambda _, place: 1))
    needed = all(row.theirs in short for row in rows if not row.when and not row.unless)
    needed = needed and all(any_of((mark,), short) for mark in variant.marks)
    return len({row.theirs for row in rows} & short) if needed else 0
