"""Checkpoints that belong to no dialect, or to another one than was given, known by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from specification.loading.record import Dialect, Variant
from specification.loading.table import any_of, numbered

UNCOVERED = {
    "ALBERT": ("*albert_layer_groups.*",),
    "BART (Marian, mBART, Pegasus, Whisper, ...)": ("*decoder.layers.0.encoder_attn.q_proj.weight",),
    "BLOOM or Falcon": ("*h.0.self_attention.query_key_value.weight",),
    "CLIP": ("*text_model.encoder.layers.0.*",),
    "DeBERTa": ("*attention.self.query_proj.weight", "*attention.self.in_proj.weight"),
    "ELECTRA": ("electra.*",),
    "GPT-J": ("*h.0.attn.q_proj.weight",),
    "GPT-Neo": ("*h.0.attn.attention.q_proj.weight",),
    "GPT-NeoX": ("*layers.0.attention.query_key_value.weight",),
    "LLaMA (Gemma, Mistral, Phi-3, Qwen2, ...)": (
        "*layers.0.mlp.gate_proj.weight",
        "*layers.0.mlp.gate_up_proj.weight",
    ),
    "Mamba": ("*layers.0.mixer.A_log",),
    "ModernBERT": ("*layers.0.attn.Wqkv.weight",),
    "MPNet": ("*layer.0.attention.attn.q.weight",),
    "OPT": ("*decoder.layers.0.self_attn_layer_norm.weight",),
    "T5": ("*block.0.layer.0.SelfAttention.q.weight",),
    "ViT": ("*embeddings.patch_embeddings.projection.weight",),
    "XLNet": ("*layer.0.rel_attn.q",),
}
"""Well-known families that no dialect covers, each by names of which its checkpoints have one; the first that fits."""


def uncovered(names: Collection[str]) -> str | None:
    """Recognise a family of models that no dialect covers.

    Args:
        names: those of a checkpoint's entries.

    Returns:
        The family's name, or None where it is not known.
    """
    return next((family for family, patterns in UNCOVERED.items() if any_of(patterns, names)), None)


def covered(dialects: Iterable[Dialect], names: Collection[str]) -> str | None:
    """Find the dialect that a checkpoint has the names of.

    Args:
        dialects: records, of which the first that fits is taken.
        names: those of the checkpoint's entries.

    Returns:
        The dialect's name, or None where there is none.
    """
    return next((one.name for one in dialects if any(fits(one, variant, names) for variant in one.variants)), None)


def fits(dialect: Dialect, variant: Variant, names: Collection[str]) -> bool:
    """Tell whether a checkpoint has every name of a variant's first layer.

    Args:
        dialect: the record.
        variant: one of its variants. Names that not every checkpoint has are not asked for.
        names: those of the checkpoint's entries.
    """
    short = {name.removeprefix(prefix) for name in names for prefix in (*dialect.prefixes, "")}
    rows = [row for row in numbered(variant.table, lambda _, place: 1) if not row.when and not row.unless]
    return all(row.theirs in short for row in rows)
