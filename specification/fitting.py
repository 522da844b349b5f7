"""Whether a model's arrays fit one another and its configuration, so that it can be called at all.

Shapes are followed through the model the way the calls go, and all that does not fit is collected. A size that follows
from another array is asked of the later one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from specification import checks
from specification.arrays import Array
from specification.blocks import misplaced_norms
from specification.configuration import AttentionLayer, Configuration
from specification.dtypes import FLOATING, compute_dtype_name
from specification.parameters import (
    Classifier,
    Decoder,
    Embedding,
    Encoder,
    FeedForward,
    GatedFeedForward,
    ImageEmbedding,
    LanguageModel,
    LatentAttention,
    Linear,
    MixtureOfExperts,
    MultiHeadAttention,
    Norm,
    Transformer,
)

Size = int | None
"""None where any will do."""


def misfits(parameters: object, configuration: Configuration) -> list[str]:
    """Collect what keeps a model from being called, array by array: dtypes, ranks and sizes; a sentence for each."""
    return Fitting(configuration).of_model(parameters)


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


class Fitting:
    """Collects what does not fit. Methods return the sizes that they have found; None for those that are wrong."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.problems: list[str] = []
        self.dtypes: dict[str, str] = {}
        self.norm_dtypes: dict[str, str] = {}

    # --- arrays ---

    def array(self, path: str, array: Array, *shape: Size, of_norm: bool = False) -> tuple[Size, ...]:
        """Its sizes, once rank and dtype are as they should be and each size is the one that is asked for."""
        (self.norm_dtypes if of_norm else self.dtypes)[path] = str(array.dtype)
        if str(array.dtype) not in FLOATING:
            self.problems.append(f"{path} must be floating, got {array.dtype}")
            return (None,) * len(shape)
        got = np.shape(array)
        if len(got) != len(shape) or any(size not in (None, there) for size, there in zip(shape, got, strict=True)):
            told = ", ".join("any" if size is None else str(size) for size in shape)
            self.problems.append(f"{path} must have shape [{told}], got {list(got)}")
            return (None,) * len(shape)
        if 0 in got:
            self.problems.append(f"{path} has no elements, its shape is {list(got)}")
            return (None,) * len(shape)
        return got

    def linear(self, path: str, linear: Linear, inner: Size, outer: Size = None) -> tuple[Size, Size]:
        inner, outer = self.array(f"{path}.weight", linear.weight, inner, outer)
        if linear.bias is not None:
            self.array(f"{path}.bias", linear.bias, outer)
        return inner, outer

    def norm(self, path: str, norm: Norm | None, width: Size) -> Size:
        if norm is None:
            return width
        for name, array in zip(Norm._fields, norm, strict=True):
            if array is not None:
                (width,) = self.array(f"{path}.{name}", array, width, of_norm=True)
        if norm.bias is not None and self.configuration.norm.startswith("rms_norm"):
            self.problems.append(f"{path}.bias is there, and {self.configuration.norm} has none")
        return width

    # --- pieces of models ---

    def heads(self, path: str, given: Linear | list[Linear], width: Size) -> tuple[Size, Size]:
        """(input width, columns of all heads together)."""
        if isinstance(given, Linear):
            return self.linear(path, given, width)
        one: Size = None
        for h, head in enumerate(given):
            width, one = self.linear(f"{path}.{h}", head, width, one)
        if len({head.bias is None for head in given}) > 1:
            self.problems.append(f"{path} has biases in some heads only")
        return width, None if one is None else one * len(given)

    def self_attention(self, path: str, p: MultiHeadAttention, width: Size, layer: AttentionLayer) -> Size:
        """Its width, which is that of all that goes in and of what comes out."""
        width, queries = self.heads(f"{path}.query", p.query, width)
        _, keys = self.heads(f"{path}.key", p.key, width)
        _, values = self.heads(f"{path}.value", p.value, width)
        self.output(path, p, queries, keys, values, width)
        self.rotary(path, layer, queries)
        return width

    def rotary(self, path: str, layer: AttentionLayer, queries: Size) -> None:
        """Heads of this width can be rotated as the layer says."""
        if layer.rotary is not None and queries is not None:
            self.checked(path, checks.rotary_fits, layer.rotary, queries // self.configuration.num_heads)

    def cross_attention(self, path: str, p: MultiHeadAttention, width: Size, memory: Size) -> tuple[Size, Size]:
        """(width of what attends and of what comes out, width of the memory)."""
        width, queries = self.heads(f"{path}.query", p.query, width)
        memory, keys = self.heads(f"{path}.key", p.key, memory)
        _, values = self.heads(f"{path}.value", p.value, memory)
        self.output(path, p, queries, keys, values, width)
        return width, memory

    def attention_alone(self, p: MultiHeadAttention) -> None:
        """Queries, keys and values may have any widths, and so may what comes out."""
        _, queries = self.heads("query", p.query, None)
        _, keys = self.heads("key", p.key, None)
        _, values = self.heads("value", p.value, None)
        self.output("", p, queries, keys, values, None)
        self.rotary("query", self.layers("", 1)[0], queries)

    def of_heads(self, path: str, p: MultiHeadAttention, queries: Size, keys: Size) -> None:
        """What a block's attention has beside its projections: norms of queries and keys, and sinks."""
        H = self.configuration.num_heads
        D = None if queries is None else queries // H
        for name, norm, columns in (("query_norm", p.query_norm, queries), ("key_norm", p.key_norm, keys)):
            whole = norm is not None and np.shape(norm.weight) == (columns,)
            self.norm(joined(path, name), norm, columns if whole else D)
        if p.sinks is not None:
            self.array(joined(path, "sinks"), p.sinks, H, of_norm=True)
            if self.configuration.empty_rows != "zero":
                self.problems.append(f"{path}.sinks has no place with empty_rows={self.configuration.empty_rows!r}")

    def checked(self, path: str, check: Callable[..., object], *arguments: object, **named: object) -> None:
        """Keep what a check of arguments says."""
        try:
            check(*arguments, **named)
        except (TypeError, ValueError) as error:
            self.problems.append(f"{path}: {error}")

    def output(self, path: str, p: MultiHeadAttention, queries: Size, keys: Size, values: Size, width: Size) -> None:
        """The columns of the three projections, and the output's rows, follow one another as in MHA-1."""
        H, rows = self.configuration.num_heads, None
        if queries is not None and keys is not None and values is not None:
            D = queries // H
            G = keys // D if D else 0
            wrong = None
            if queries != D * H:
                wrong = f"query has {queries} columns, which {H} heads cannot share equally"
            elif keys != G * D:
                wrong = f"key has {keys} columns, which is no multiple of the head width {D}"
            elif H % G:
                wrong = f"key has {G} heads, of which the {H} query heads are no multiple"
            elif values % G:
                wrong = f"value has {values} columns, which {G} key heads cannot share equally"
            else:
                rows = values // G * H
                self.counts(path, p, H, G)
            self.problems += [] if wrong is None else [joined(path, wrong)]
        self.linear(joined(path, "output"), p.output, rows, width)
        self.of_heads(path, p, queries, keys)

    def counts(self, path: str, p: MultiHeadAttention, H: int, G: int) -> None:
        """Lists of heads have as many as there are."""
        for name, part, count in zip(p._fields[:3], p[:3], (H, G, G), strict=True):
            if not isinstance(part, Linear) and len(part) != count:
                self.problems.append(f"{joined(path, name)} must have {count} heads, got {len(part)}")

    def feed_forward(
        self, path: str, p: FeedForward | GatedFeedForward, width: Size, *, of_experts: bool = False
    ) -> None:
        if self.configuration.activation == "clamped_swiglu" and not of_experts:
            self.problems.append(f"{path} has no activation 'clamped_swiglu', which only experts have")
        inner: Size = None
        if isinstance(p, GatedFeedForward):
            width, inner = self.linear(f"{path}.gate", p.gate, width)
        width, inner = self.linear(f"{path}.inner", p.inner, width, inner)
        self.linear(f"{path}.outer", p.outer, inner, width)

    def latent_attention(self, path: str, p: LatentAttention, width: Size, layer: AttentionLayer) -> Size:
        """Its width, as of `self_attention`; D, R and V of MLA-1 are read off the shapes."""
        H, inner = self.configuration.num_heads, width
        if p.query_down is not None:
            width, inner = self.linear(f"{path}.query_down", p.query_down, width)
            self.norm(f"{path}.query_norm", p.query_norm, inner)
        if (p.query_down is None) != (p.query_norm is None):
            self.problems.append(f"{path} has one of query_down and query_norm, and needs both or none")
        inner, queries = self.linear(f"{path}.query", p.query, inner)
        width = inner if p.query_down is None else width
        latent = self.norm(f"{path}.key_value_norm", p.key_value_norm, None)
        self.checked(path, checks.latent_scores, self.configuration)
        rotary = layer.rotary
        if rotary is None or rotary.width is None:
            self.problems.append(f"{path}: a latent attention needs a layer with a rotary width")
            return width
        R = rotary.width
        self.linear(f"{path}.key_value_down", p.key_value_down, width, None if latent is None else latent + R)
        _, columns = self.linear(f"{path}.key_value_up", p.key_value_up, latent)
        rows = None
        if queries is not None and columns is not None:
            D, both = queries // H - R, columns // H
            if queries % H or D < 1:
                self.problems.append(
                    f"{path}.query has {queries} columns, in which {H} heads have no more than {R} each"
                )
            elif columns % H or both <= D:
                self.problems.append(f"{path}.key_value_up has {columns} columns, and {H} heads have keys of {D} each")
            else:
                rows = H * (both - D)
        self.linear(f"{path}.output", p.output, rows, width)
        self.checked(path, checks.rotary_fits, rotary, R)
        return width

    def mixture(self, path: str, p: MixtureOfExperts, width: Size) -> None:
        """Router, stacked experts, and the expert that all tokens go through."""
        choice = self.configuration.experts
        if choice is None:
            self.problems.append(f"{path} is a mixture, and the configuration has no experts")
            return
        width, count = self.linear(f"{path}.router", p.router, width)
        if p.choice_bias is not None:
            self.array(f"{path}.choice_bias", p.choice_bias, count, of_norm=True)
        inner: Size = None
        for name, linear in p.experts._asdict().items():
            sizes = (count, inner, width) if name == "outer" else (count, width, inner)
            _, _, last = self.array(f"{path}.experts.{name}.weight", linear.weight, *sizes)
            inner = inner if name == "outer" else last
            if linear.bias is not None:
                self.array(f"{path}.experts.{name}.bias", linear.bias, count, last)
        if p.shared is not None:
            self.feed_forward(f"{path}.shared", p.shared, width, of_experts=True)
            if type(p.shared) is not type(p.experts):
                self.problems.append(f"{path}.shared is a network of another kind than the experts")
        if self.configuration.activation == "clamped_swiglu" and not isinstance(p.experts, GatedFeedForward):
            self.problems.append(f"{path} has no activation 'clamped_swiglu', which gated experts alone have")
        if count is not None:
            self.checked(path, checks.expert_choice, count, **asdict(choice))

    def embedding(self, path: str, p: Embedding, padding: dict[str, int | None]) -> Size:
        """Its width. padding: ids by the names that they have in the configuration."""
        vocabulary, width = self.array(f"{path}.tokens", p.tokens, None, None)
        rows: Size = None
        for name, table in (("positions", p.positions), ("token_types", p.token_types)):
            if table is not None:
                size, _ = self.array(f"{path}.{name}", table, None, width)
                rows = size if name == "positions" else rows
        if (p.positions is None) == (self.configuration.positions in ("learned", "after_padding")):
            there = "missing" if p.positions is None else "there"
            self.problems.append(f"{path}.positions is {there}, with positions={self.configuration.positions!r}")
        for name, id in padding.items():
            if id is not None and vocabulary is not None and id >= vocabulary:
                self.problems.append(f"{name} must be the id of a token below {vocabulary}, got {id}")
        first = self.configuration.position_padding
        if first is not None and rows is not None and first + 1 >= rows:
            self.problems.append(f"{path}.positions has {rows} rows, and positions begin at {first + 1}")
        return self.norm(f"{path}.norm", p.norm, width)

    def image_embedding(self, path: str, p: ImageEmbedding) -> Size:
        """Its width."""
        columns, width = self.linear(f"{path}.patches", p.patches, None)
        size = self.configuration.patch_size
        if size is None:
            self.problems.append(f"{path} takes images, and the configuration has no patch_size")
        elif columns is not None and columns % size**2:
            self.problems.append(f"{path}.patches.weight has {columns} rows, no multiple of {size} * {size}")
        for name, array, shape in (("class_token", p.class_token, (width,)), ("positions", p.positions, (None, width))):
            self.array(f"{path}.{name}", array, *shape)
        return width

    def relative_positions(self, path: str, p: Encoder | Decoder) -> None:
        """The table of a bias that all blocks share."""
        if p.relative_positions is not None:
            here = joined(path, "relative_positions")
            buckets, _ = self.array(here, p.relative_positions, None, self.configuration.num_heads)
            bidirectional, furthest = isinstance(p, Encoder), self.configuration.relative_furthest
            if buckets is not None:
                check = checks.relative_position_bias
                self.checked(here, check, p.relative_positions, 1, 1, bidirectional, furthest, 0)

    def layers(self, path: str, count: int) -> tuple[AttentionLayer, ...]:
        """Those of so many blocks; plain ones where they are of another number."""
        try:
            return self.configuration.layers(count)
        except ValueError as error:
            self.problems.append(f"{path}: {error}" if path else str(error))
            return (AttentionLayer(),) * count

    def stack(self, path: str, p: Encoder | Decoder, memory: Size = None) -> Size:
        """Its width. memory: that of what the encoder gives, where it is known."""
        c = self.configuration
        width: Size = None
        if isinstance(p.embedding, ImageEmbedding):
            width = self.image_embedding(joined(path, "embedding"), p.embedding)
        elif p.embedding is not None:
            own = "source_padding" if isinstance(p, Encoder) else "target_padding"
            ids = {own: getattr(c, own), "position_padding": c.position_padding}
            width = self.embedding(joined(path, "embedding"), p.embedding, ids)
        self.relative_positions(path, p)
        block: Any
        for i, (block, layer) in enumerate(zip(p.blocks, self.layers(path, len(p.blocks)), strict=True)):
            where, order = joined(path, f"blocks.{i}"), c.norm_order
            self.problems += [f"{where}: with norm_order={order!r} {end}" for end in misplaced_norms(block, order)]
            for name, part in zip(block._fields, block, strict=True):
                here = joined(path, f"blocks.{i}.{name}")
                if isinstance(part, Norm):
                    width = self.norm(here, part, width)
                elif isinstance(part, FeedForward | GatedFeedForward):
                    self.feed_forward(here, part, width)
                elif isinstance(part, MixtureOfExperts):
                    self.mixture(here, part, width)
                elif isinstance(part, LatentAttention):
                    width = self.latent_attention(here, part, width, layer)
                elif name == "cross_attention" and part is not None:
                    width, memory = self.cross_attention(here, part, width, memory)
                elif part is not None:
                    width = self.self_attention(here, part, width, layer)
        return self.norm(joined(path, "norm"), p.norm, width)

    # --- models ---

    def of_model(self, p: object) -> list[str]:
        """All that is wrong."""
        width: Size = None
        if isinstance(p, Transformer):
            width = self.stack("decoder", p.decoder, self.stack("encoder", p.encoder))
        elif isinstance(p, Classifier):
            width = self.stack("encoder", p.encoder)
        elif isinstance(p, LanguageModel):
            width = self.stack("decoder", p.decoder)
        elif isinstance(p, Encoder | Decoder):
            self.stack("", p)
        elif isinstance(p, MultiHeadAttention):
            self.attention_alone(p)
        output = getattr(p, "output", None)
        if output is not None and not isinstance(p, MultiHeadAttention):
            self.linear("output", output, width)
        self.one_dtype()
        return self.problems

    def one_dtype(self) -> None:
        """All arrays share it; those of norms may have the wider one in which norms compute (NORM-2)."""
        found = [dtype for dtype in FLOATING if dtype in self.dtypes.values()]
        if len(found) > 1:
            self.problems.append(f"the arrays mix {' and '.join(found)}: {self.rarest()}")
        allowed = {found[0], compute_dtype_name(found[0])} if len(found) == 1 else set(FLOATING)
        for path, dtype in self.norm_dtypes.items():
            if dtype in FLOATING and dtype not in allowed:
                self.problems.append(f"{path} is {dtype}, beside arrays of {found[0]}")

    def rarest(self) -> str:
        """Which arrays have another dtype than most."""
        dtypes = list(self.dtypes.values())
        most = max(dict.fromkeys(dtypes), key=dtypes.count)
        return ", ".join(f"{path} is {dtype}" for path, dtype in self.dtypes.items() if dtype != most)
