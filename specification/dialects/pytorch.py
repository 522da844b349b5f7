"""The state dicts of `torch.nn.Transformer`, of its encoder and decoder alone, and of `nn.MultiheadAttention`.

Which of them it is follows from the names, and whether there are biases too. They take embeddings, not tokens, and
their caller gives all masks.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np

from specification.configuration import Configuration
from specification.loading.reader import Reader
from specification.loading.record import Dialect, Example, Variant
from specification.loading.table import Row, Table, each, feed_forward, linear, norm, table
from specification.masks import KeyPadding
from specification.parameters import Decoder, Encoder, MultiHeadAttention, Transformer

BIASED = ("*in_proj_bias", "*out_proj.bias", "*linear?.bias", "*norm?.bias")
"""Names of which one is there where all modules but a last norm have a bias."""
SEPARATE = ("q_proj_weight",)
"""There is one [3 E, E] matrix where keys and values are as wide as queries, else three."""


def where_biased(rows: Table) -> Table:
    """The same, with a bias where the modules have one."""
    return tuple(row._replace(when=BIASED) if row.theirs.endswith("bias") else row for row in rows)


def projections(part: str) -> tuple[str, ...]:
    return tuple(f"{name}.{part}" for name in ("query", "key", "value"))


ATTENTION = table(
    (
        Row("in_proj_weight", projections("weight"), ("3 * E", "E"), turned=True, unless=SEPARATE),
        Row("q_proj_weight", "query.weight", ("E", "E"), turned=True, when=SEPARATE),
        Row("k_proj_weight", "key.weight", ("E", "key width"), turned=True, when=SEPARATE),
        Row("v_proj_weight", "value.weight", ("E", "value width"), turned=True, when=SEPARATE),
        Row("in_proj_bias", projections("bias"), ("3 * E",)),
    ),
    linear("out_proj", "output"),
)
FEED_FORWARD = feed_forward("linear1", "linear2")
ENCODER_BLOCK = where_biased(
    table(
        each("self_attn.", "attention.", ATTENTION),
        norm("norm1", "attention_norm"),
        FEED_FORWARD,
        norm("norm2", "feed_forward_norm"),
    )
)
DECODER_BLOCK = where_biased(
    table(
        each("self_attn.", "self_attention.", ATTENTION),
        norm("norm1", "self_attention_norm"),
        each("multihead_attn.", "cross_attention.", ATTENTION),
        norm("norm2", "cross_attention_norm"),
        FEED_FORWARD,
        norm("norm3", "feed_forward_norm"),
    )
)


def last_norm(*stacks: str) -> Table:
    """A module of its own, given by the caller, with a bias or without; in an nn.Transformer both stacks alike."""
    biases = tuple(f"{stack}norm.bias" for stack in stacks)
    weights = tuple(f"{stack}norm.weight" for stack in stacks)
    both = ((weights + biases), biases)
    rows = table(*(norm(f"{stack}norm", f"{stack}norm") for stack in stacks))
    return tuple(row._replace(when=both[row.theirs.endswith("bias")]) for row in rows)


def stack(prefix: str, block: Table, alone: bool) -> Table:
    """Numbered layers, or a single layer, which is read as a stack of one block."""
    theirs, ours = (prefix, "0") if alone else (f"{prefix}layers.{{i}}.", "{i}")
    return each(theirs, f"{prefix}blocks.{ours}.", block)


def layer(prefix: str) -> str:
    """A name that only a single layer has."""
    return f"{prefix}self_attn.out_proj.weight"


def configuration(
    *,
    num_heads: int,
    norm_first: bool = False,
    activation: str = "relu",
    eps: float = 1e-5,
    empty_rows: str = "zero",
) -> Configuration:
    """Hyperparameters as the modules have them; eps is their layer_norm_eps.

    empty_rows: what a position gets that may attend to nothing. PyTorch 2.13 gives what "zero" says, in its stacks and
    with need_weights=False; what "nan" says in `nn.MultiheadAttention` as it is by default, with need_weights=True; and
    in evaluation without gradients, where its modules take a faster path, 0 or NaN for the whole position.

    A single layer is read as an encoder or a decoder of one block. bias_k and bias_v are not supported.
    """
    return Configuration(
        num_heads=num_heads,
        norm_order="pre" if norm_first else "post",
        norm_eps=eps,
        activation=activation,
        empty_rows=empty_rows,
        positions="none",
        target_mask="none",
    )


def check(read: Reader, given: Mapping[str, Any]) -> None:
    """A last norm without a bias may be another norm, where everything else has a bias."""
    for name in ("norm", "encoder.norm", "decoder.norm"):
        both = [name] if name == "norm" else ["encoder.norm", "decoder.norm"]
        weights, biases = (any(f"{one}.{part}" in read.entries for one in both) for part in ("weight", "bias"))
        if weights and not biases and read.has_any(BIASED):
            told = "has no bias, as an nn.RMSNorm or a layer norm without one: it is taken for a layer norm"
            read.warnings.append(f"{name} {told}")


def variant(structure: type, rows: Table, *marks: str, example: Example | None = None) -> Variant:
    return Variant(
        structure=structure,
        table=rows,
        configuration=configuration,
        called_with="embeddings, masks by keyword",
        gives="[B, T, E]",
        name=structure.__name__,
        marks=marks,
        check=check,
        example=example,
    )


REAL = np.array([[True, True, True, True], [True, True, False, False]])
EXAMPLE = Example(
    hyperparameters={"num_heads": 2},
    inputs={"source": 4, "target": 3},
    options={"source_mask": KeyPadding(REAL), "memory_mask": KeyPadding(REAL)},
    about="Padding is masked by the caller; no target_mask is given, as in a call that forgets it.",
    sizes={"key width": 8, "value width": 8},
    without=("*.?_proj_weight",),
)


def variants() -> tuple[Variant, ...]:
    """Attention, the whole, the decoder, the encoder; each stack of layers may be a single layer."""
    found = [variant(MultiHeadAttention, where_biased(ATTENTION), "out_proj.weight")]
    for encoder, decoder in product((True, False), (True, False)):
        rows = table(
            stack("encoder.", ENCODER_BLOCK, encoder),
            stack("decoder.", DECODER_BLOCK, decoder),
            last_norm("encoder.", "decoder."),
        )
        single = [layer("encoder.")] * encoder + [layer("decoder.")] * decoder
        for marks in [single] if single else [["encoder.*"], ["decoder.*"]]:
            found.append(variant(Transformer, rows, *marks, example=None if single else EXAMPLE))
    for structure, block, own in ((Decoder, DECODER_BLOCK, ["*multihead_attn.*"]), (Encoder, ENCODER_BLOCK, [])):
        for alone in (True, False):
            marks = own + [layer("")] * alone
            found.append(variant(structure, table(stack("", block, alone), last_norm("")), *marks))
    return tuple(found)


DIALECT = Dialect(
    name="pytorch",
    about=__doc__,
    source="`torch.nn.Transformer`, its parts, and `torch.nn.MultiheadAttention`, of PyTorch",
    variants=variants(),
)
