"""A small checkpoint of random numbers for each dialect, under its own names, with inputs for the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from specification.masks import KeyPadding

E, F, HEADS, VOCABULARY, LONGEST, CLASSES = 8, 12, 2, 6, 5, 3
"""Model width, feed-forward width, heads, tokens, rows of learned positions, classes."""


class Entry(NamedTuple):
    """How an entry of a checkpoint is drawn: normally distributed."""

    shape: tuple[int, ...]
    spread: float
    mean: float = 0.0


Entries = dict[str, Entry]


class Small(NamedTuple):
    """hyperparameters: what `load` is told beside the checkpoint. inputs, options: by name, what the model takes."""

    entries: Entries
    hyperparameters: Mapping[str, Any]
    inputs: Mapping[str, np.ndarray]
    options: Mapping[str, Any]
    about: str = ""


def table(name: str, rows: int = VOCABULARY) -> Entries:
    return {name: Entry((rows, E), 1.0)}


def matrix(name: str, outer: int, inner: int) -> Entries:
    """Of a size that keeps what it multiplies as large as it is."""
    return {name: Entry((outer, inner), min(outer, inner) ** -0.5)}


def vector(name: str, length: int = E, mean: float = 0.0) -> Entries:
    """A bias, or what a norm multiplies by: a little off the 0 or 1 with which it begins."""
    return {name: Entry((length,), 0.2, mean)}


def linear(name: str, inner: int = E, outer: int = E, *, bias: bool = True) -> Entries:
    return matrix(f"{name}.weight", outer, inner) | (vector(f"{name}.bias", outer) if bias else {})


def norm(name: str, weight: str = "weight") -> Entries:
    return vector(f"{name}.{weight}", mean=1.0) | vector(f"{name}.bias")


def several(make: Callable[..., Entries], name: str, parts: str, *sizes: int, **options: Any) -> Entries:
    """The same for each of the parts that the name has a place for."""
    found: Entries = {}
    for part in parts.split():
        found |= make(name.format(part), *sizes, **options)
    return found


def feed_forward(inner: str, outer: str) -> Entries:
    return linear(inner, E, F) | linear(outer, F, E)


# --- tutorials --------------------------------------------------------------------------------------------------------


def notebook_scratch() -> Entries:
    blocks = ("encoder.layers.0", "decoder.layers.0.transformer_block")
    found = several(table, "{}.word_embedding.weight", "encoder decoder")
    found |= several(table, "{}.position_embedding.weight", "encoder decoder", LONGEST)
    for name in blocks:
        found |= several(linear, f"{name}.attention.{{}}", "queries keys values fc_out")
        found |= several(norm, f"{name}.{{}}", "norm1 norm2")
        found |= feed_forward(f"{name}.feed_forward.0", f"{name}.feed_forward.2")
    found |= several(linear, "decoder.layers.0.attention.{}", "queries keys values fc_out")
    return found | norm("decoder.layers.0.norm") | linear("decoder.fc_out", E, VOCABULARY)


def prenorm_blog() -> Entries:
    found = several(table, "{}.embed.embed.weight", "encoder decoder")
    for stack, attentions, norms in (("encoder", "attn", "1 2"), ("decoder", "attn_1 attn_2", "1 2 3")):
        for name in attentions.split():
            found |= several(linear, f"{stack}.layers.0.{name}.{{}}", "q_linear k_linear v_linear out")
        found |= several(norm, f"{stack}.layers.0.norm_{{}}", norms, weight="alpha") | norm(f"{stack}.norm", "alpha")
        found |= feed_forward(f"{stack}.layers.0.ff.linear_1", f"{stack}.layers.0.ff.linear_2")
    return found | linear("out", E, VOCABULARY)


def dawn() -> Entries:
    found = several(table, "{}_embed.embed.weight", "src tgt")
    for name in ("encs.0.mha", "decs.0.mha", "decs.0.cross_mha"):
        found |= several(linear, f"{name}.{{}}", "W_q W_k W_v W_o")
    found |= several(norm, "encs.0.add_norm{}.norm", "1 2") | several(norm, "decs.0.add_and_norm{}.norm", "1 2 3")
    for name in ("encs.0", "decs.0"):
        found |= feed_forward(f"{name}.ff.sq.0", f"{name}.ff.sq.2")
    return found | linear("fc", E, VOCABULARY)


def imdb_classifier() -> Entries:
    found = table("token_embedding.weight") | table("pos_embedding.weight", LONGEST)
    found |= several(linear, "tblocks.0.mhattention.{}", "toqueries tokeys tovalues", bias=False)
    found |= linear("tblocks.0.mhattention.unifyheads") | several(norm, "tblocks.0.{}", "norm1 norm2")
    return found | feed_forward("tblocks.0.ff.0", "tblocks.0.ff.2") | linear("toprobs", E, CLASSES)


def transformer101() -> Entries:
    found: Entries = {}
    for head in range(HEADS):
        found |= several(linear, f"heads.{head}.{{}}", "q k v", E, E // HEADS)
    return found | linear("output_linear")


# --- libraries --------------------------------------------------------------------------------------------------------


def pytorch() -> Entries:
    """Of an `nn.Transformer`."""
    found: Entries = {}
    for name in ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"):
        found |= matrix(f"{name}.in_proj_weight", 3 * E, E) | vector(f"{name}.in_proj_bias", 3 * E)
        found |= linear(f"{name}.out_proj")
    for stack, norms in (("encoder", "1 2"), ("decoder", "1 2 3")):
        found |= feed_forward(f"{stack}.layers.0.linear1", f"{stack}.layers.0.linear2")
        found |= several(norm, f"{stack}.layers.0.norm{{}}", norms) | norm(f"{stack}.norm")
    return found


def bert() -> Entries:
    layer = "bert.encoder.layer.0"
    found = table("bert.embeddings.word_embeddings.weight")
    found |= table("bert.embeddings.position_embeddings.weight", LONGEST)
    found |= table("bert.embeddings.token_type_embeddings.weight", 2) | norm("bert.embeddings.LayerNorm")
    found |= several(linear, f"{layer}.attention.self.{{}}", "query key value")
    found |= linear(f"{layer}.attention.output.dense") | norm(f"{layer}.attention.output.LayerNorm")
    found |= feed_forward(f"{layer}.intermediate.dense", f"{layer}.output.dense") | norm(f"{layer}.output.LayerNorm")
    return found | linear("bert.pooler.dense")


def gpt2() -> Entries:
    """Its projections are stored [in, out], and the output layer is the token table."""

    def turned(name: str, inner: int, outer: int) -> Entries:
        return matrix(f"{name}.weight", inner, outer) | vector(f"{name}.bias", outer)

    layer = "transformer.h.0"
    found = table("transformer.wte.weight") | table("transformer.wpe.weight", LONGEST)
    found |= norm(f"{layer}.ln_1") | turned(f"{layer}.attn.c_attn", E, 3 * E) | turned(f"{layer}.attn.c_proj", E, E)
    found |= norm(f"{layer}.ln_2") | turned(f"{layer}.mlp.c_fc", E, F) | turned(f"{layer}.mlp.c_proj", F, E)
    return found | norm("transformer.ln_f")


# --- what they are called with ----------------------------------------------------------------------------------------

SOURCE = np.array([[3, 1, 4, 0], [0, 0, 0, 0]])
TARGET = np.array([[0, 2, 5, 0], [4, 3, 1, 0]])
TOKENS = np.array([[3, 1, 4, 2], [5, 2, 0, 0]])
REAL = TOKENS != 0
PADDED = "Token 0 is padding. The second source is nothing else, so nothing can be attended to there."


def embedded(seed: int, length: int) -> np.ndarray:
    """Embeddings that are easy to read: one decimal."""
    return np.random.default_rng(seed).uniform(-2, 2, (2, length, E)).round(1).astype(np.float32)


def small() -> dict[str, Small]:
    """By dialect, in the order of the pages."""
    both, ids, heads = {"source": SOURCE, "target": TARGET}, {"tokens": TOKENS}, {"num_heads": HEADS}
    pads = {"source_pad": 0, "target_pad": 0}
    masked = {"source_mask": KeyPadding(REAL), "memory_mask": KeyPadding(REAL)}
    return {
        "notebook-scratch": Small(notebook_scratch(), heads | pads, both, {}, PADDED),
        "prenorm-blog": Small(prenorm_blog(), heads | pads, both, {}, PADDED),
        "dawn": Small(dawn(), heads, both, {}, PADDED),
        "imdb-classifier": Small(imdb_classifier(), heads, ids, {}, "Token 0 is padding, which is not masked."),
        "transformer101": Small(transformer101(), {}, {"x": embedded(1, 3)}, {}),
        "pytorch": Small(
            pytorch(), heads, {"source": embedded(1, 4), "target": embedded(2, 3)}, masked,
            "Padding is masked by the caller; no target_mask is given, as in a call that forgets it.",
        ),
        "bert": Small(
            bert(), heads, ids, {"key_padding": REAL, "token_types": np.array([[0, 0, 1, 1], [0, 1, 0, 0]])},
            "Token 0 is padding, and masked by key_padding.",
        ),
        "gpt2": Small(gpt2(), heads, ids, {}, "Token 0 is a token like all others."),
    }  # fmt: skip


def drawn(entries: Entries, seed: int = 0) -> dict[str, np.ndarray]:
    """The checkpoint in float32."""
    generator = np.random.default_rng(seed)
    return {name: generator.normal(one.mean, one.spread, one.shape).astype(np.float32) for name, one in entries.items()}
