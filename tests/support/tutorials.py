"""What five tutorials compute, as modules with the tutorials' parameter names and their ways of masking and scaling.

They are written anew, after the published texts, to be compared with; nothing of the project's own arithmetic is used.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.tutorial import CTransformer


def heads(x: Tensor, count: int) -> Tensor:
    """[B, T, E] as [B, count, T, E / count]."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(-2)


def filled_softmax(scores: Tensor, mask: Tensor | None, fill: float, divisor: float = 1.0) -> Tensor:
    """Softmax with forbidden scores set to a large negative number, before what is divided by afterwards."""
    scores = scores if mask is None else scores.masked_fill(mask == 0, fill)
    return torch.softmax(scores / divisor, dim=-1)


def named(**modules: nn.Module) -> nn.Module:
    """Modules one after the other, with their parameters under these names."""
    return nn.Sequential(OrderedDict(modules))


def feed_forward(width: int, inner: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))


class FourProjections(nn.Module):
    """Multi-head attention with the projections under the given names; `weigh` makes weights of raw products."""

    def __init__(self, width: int, count: int, names: tuple[str, ...], weigh: Callable[..., Tensor]) -> None:
        super().__init__()
        for name in names:
            self.add_module(name, nn.Linear(width, width))
        self.names, self.count, self.weigh = names, count, weigh

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value, output = (getattr(self, name) for name in self.names)
        q, k, v = (heads(part, self.count) for part in (query(x), key(memory), value(memory)))
        return output(joined(self.weigh(q @ k.mT, mask) @ v))


# --- notebook-scratch -------------------------------------------------------------------------------------------------


def scratch_attention(width: int, count: int) -> FourProjections:
    def weigh(products: Tensor, mask: Tensor | None) -> Tensor:
        return filled_softmax(products, mask, -1e20, divisor=width**0.5)

    return FourProjections(width, count, ("queries", "keys", "values", "fc_out"), weigh)


class ScratchBlock(nn.Module):
    def __init__(self, width: int, count: int, expansion: int) -> None:
        super().__init__()
        self.attention = scratch_attention(width, count)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = feed_forward(width, expansion * width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(self.attention(x, memory, mask) + x)
        return self.norm2(self.feed_forward(x) + x)


class ScratchDecoderBlock(nn.Module):
    def __init__(self, width: int, count: int, expansion: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = scratch_attention(width, count)
        self.transformer_block = ScratchBlock(width, count, expansion)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
        x = self.norm(self.attention(x, x, target_mask) + x)
        return self.transformer_block(x, memory, source_mask)


class ScratchStack(nn.Module):
    def __init__(self, vocabulary: int, longest: int, width: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.word_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(longest, width)
        self.layers = nn.ModuleList(layers)

    def forward(self, tokens: Tensor, *others: Tensor) -> Tensor:
        x = self.word_embedding(tokens) + self.position_embedding(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x, *(others if len(others) > 1 else (x, *others)))
        return x


class NotebookScratch(nn.Module):
    """Source padding masked, target padding not; scores filled, then divided by sqrt(E)."""

    def __init__(self, source: int, target: int, width: int, count: int, expansion: int, depth: int, pad: int) -> None:
        super().__init__()
        self.encoder = ScratchStack(source, 20, width, [ScratchBlock(width, count, expansion) for _ in range(depth)])
        blocks: list[nn.Module] = [ScratchDecoderBlock(width, count, expansion) for _ in range(depth)]
        self.decoder = ScratchStack(target, 20, width, blocks)
        self.decoder.fc_out = nn.Linear(width, target)
        self.pad = pad

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        source_mask = (source != self.pad)[:, None, None]
        target_mask = torch.ones(target.shape[1], target.shape[1]).tril()
        memory = self.encoder(source, source_mask)
        return self.decoder.fc_out(self.decoder(target, memory, source_mask, target_mask))


# --- transformer101, and the pre-norm blog's own multi-head attention -------------------------------------------------


class Head(nn.Module):
    def __init__(self, width: int, key_width: int, value_width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, size) for size in (key_width, key_width, value_width))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # The text takes the root in float32, which is exact where the width is a power of 4.
        scores = self.q(query) @ self.k(key).mT / torch.sqrt(torch.tensor(self.q.out_features, dtype=torch.float32))
        return torch.softmax(scores, dim=-1) @ self.v(value)


class SeparateHeads(nn.Module):
    """One projection of query, key and value for every head; `output` names the last projection."""

    def __init__(self, width: int, count: int, key_width: int, value_width: int, output: str) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(width, key_width, value_width) for _ in range(count))
        self.add_module(output, nn.Linear(count * value_width, width))
        self.output = output

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None) -> Tensor:
        key = query if key is None else key
        value = key if value is None else value
        return getattr(self, self.output)(torch.cat([head(query, key, value) for head in self.heads], dim=-1))


# --- prenorm-blog -----------------------------------------------------------------------------------------------------


class DeviationNorm(nn.Module):
    """Unbiased deviation, eps outside the root."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.alpha * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.bias


def blog_attention(width: int, count: int) -> FourProjections:
    def weigh(products: Tensor, mask: Tensor | None) -> Tensor:
        return filled_softmax(products / math.sqrt(width // count), mask, -1e9)

    return FourProjections(width, count, ("q_linear", "k_linear", "v_linear", "out"), weigh)


def blog_forward(width: int, inner: int) -> nn.Module:
    return named(linear_1=nn.Linear(width, inner), relu=nn.ReLU(), linear_2=nn.Linear(inner, width))


class BlogEncoderLayer(nn.Module):
    def __init__(self, width: int, count: int, inner: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = DeviationNorm(width), DeviationNorm(width)
        self.attn, self.ff = blog_attention(width, count), blog_forward(width, inner)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.norm_1(x)
        x = x + self.attn(y, y, mask)
        return x + self.ff(self.norm_2(x))


class BlogDecoderLayer(nn.Module):
    def __init__(self, width: int, count: int, inner: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3 = (DeviationNorm(width) for _ in range(3))
        self.attn_1, self.attn_2 = blog_attention(width, count), blog_attention(width, count)
        self.ff = blog_forward(width, inner)

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
        y = self.norm_1(x)
        x = x + self.attn_1(y, y, target_mask)
        x = x + self.attn_2(self.norm_2(x), memory, source_mask)
        return x + self.ff(self.norm_3(x))


class BlogPositions(nn.Module):
    """Every column has an angle of its own: position / 10000^(2 column / E)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("pe", torch.zeros(1, 80, width))
        for position in range(80):
            for column in range(width):
                angle = position / (10000 ** ((2 * column) / width))
                self.pe[0, position, column] = math.cos(angle) if column % 2 else math.sin(angle)

    def forward(self, x: Tensor) -> Tensor:
        return x * math.sqrt(x.shape[-1]) + self.pe[:, : x.shape[1]]


class BlogStack(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.ModuleDict({"embed": nn.Embedding(vocabulary, width)})
        self.pe, self.layers, self.norm = BlogPositions(width), nn.ModuleList(layers), DeviationNorm(width)

    def forward(self, tokens: Tensor, *others: Tensor) -> Tensor:
        x = self.pe(self.embed["embed"](tokens))
        for layer in self.layers:
            x = layer(x, *others)
        return self.norm(x)


class PrenormBlog(nn.Module):
    """Source and target padding masked as keys, and the target causal."""

    def __init__(self, source: int, target: int, width: int, count: int, inner: int, depth: int, pad: int) -> None:
        super().__init__()
        encoders: list[nn.Module] = [BlogEncoderLayer(width, count, inner) for _ in range(depth)]
        decoders: list[nn.Module] = [BlogDecoderLayer(width, count, inner) for _ in range(depth)]
        self.encoder, self.decoder = BlogStack(source, width, encoders), BlogStack(target, width, decoders)
        self.out, self.pad = nn.Linear(width, target), pad

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        T = target.shape[1]
        source_mask = (source != self.pad)[:, None, None]
        target_mask = (target != self.pad)[:, None, None] & (torch.ones(T, T).triu(diagonal=1) == 0)
        return self.out(self.decoder(target, self.encoder(source, source_mask), source_mask, target_mask))


# --- dawn -------------------------------------------------------------------------------------------------------------


def dawn_attention(width: int, count: int) -> FourProjections:
    def weigh(products: Tensor, mask: Tensor | None) -> Tensor:
        return filled_softmax(products * (1 / (width // count) ** 0.5), mask, -1e9)

    return FourProjections(width, count, ("W_q", "W_k", "W_v", "W_o"), weigh)


def norm_sublayer(width: int) -> nn.Module:
    return named(norm=nn.LayerNorm(width))


def dawn_forward(width: int, inner: int) -> nn.Module:
    return named(sq=feed_forward(width, inner))


class DawnEncoderBlock(nn.Module):
    def __init__(self, width: int, count: int, inner: int) -> None:
        super().__init__()
        self.mha, self.ff = dawn_attention(width, count), dawn_forward(width, inner)
        self.add_norm1, self.add_norm2 = norm_sublayer(width), norm_sublayer(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.add_norm1(x + self.mha(x, x, mask))
        return self.add_norm2(x + self.ff(x))


class DawnDecoderBlock(nn.Module):
    def __init__(self, width: int, count: int, inner: int) -> None:
        super().__init__()
        self.mha, self.cross_mha = dawn_attention(width, count), dawn_attention(width, count)
        self.ff = dawn_forward(width, inner)
        self.add_and_norm1, self.add_and_norm2, self.add_and_norm3 = (norm_sublayer(width) for _ in range(3))

    def forward(self, x: Tensor, memory: Tensor, source_mask: Tensor, target_mask: Tensor) -> Tensor:
        x = self.add_and_norm1(x + self.mha(x, x, target_mask))
        x = self.add_and_norm2(x + self.cross_mha(x, memory, source_mask))
        return self.add_and_norm3(x + self.ff(x))


class DawnInput(nn.Module):
    """An embedding, and sinusoidal positions whose frequencies are computed in float32, by way of exp."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        frequencies = torch.exp(torch.arange(0, width, 2).float() * (-math.log(10000.0) / width))
        angles = torch.arange(80).float()[:, None] * frequencies
        self.register_buffer("pe", torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embed(tokens) + self.pe[: tokens.shape[1]]


class Dawn(nn.Module):
    """Source padding masked as keys; in the target padded positions, as queries, may attend to nothing."""

    def __init__(self, source: int, target: int, width: int, count: int, inner: int, depth: int) -> None:
        super().__init__()
        self.src_embed, self.tgt_embed = DawnInput(source, width), DawnInput(target, width)
        self.encs = nn.ModuleList(DawnEncoderBlock(width, count, inner) for _ in range(depth))
        self.decs = nn.ModuleList(DawnDecoderBlock(width, count, inner) for _ in range(depth))
        self.fc = nn.Linear(width, target)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        T = target.shape[1]
        source_mask = (source != 0)[:, None, None]
        target_mask = (target != 0)[:, None, :, None] & torch.ones(T, T).tril().bool()
        memory, x = self.src_embed(source), self.tgt_embed(target)
        for block in self.encs:
            memory = block(memory, source_mask)
        for block in self.decs:
            x = block(x, memory, source_mask, target_mask)
        return self.fc(x)


# --- what is compared with them ---------------------------------------------------------------------------------------

Arrays = tuple[np.ndarray, ...]


class Sizes(NamedTuple):
    width: int
    heads: int
    inner: int
    depth: int
    batch: int
    source: int
    target: int


SIZES = [Sizes(16, 4, 24, 2, 3, 9, 7), Sizes(48, 3, 40, 1, 2, 5, 11)]
VOCABULARY = (11, 13)


def tokens(sizes: Sizes, length: int, vocabulary: int) -> np.ndarray:
    """Ids in which 0 is padding: of differing amounts, none in the first sequence, and nothing else in the last."""
    generator = np.random.default_rng(length)
    ids = generator.integers(1, vocabulary, (sizes.batch, length))
    for row, count in enumerate(np.linspace(0, length, sizes.batch).astype(int)):
        ids[row, length - count :] = 0
    return ids


def both(sizes: Sizes) -> Arrays:
    return tokens(sizes, sizes.source, VOCABULARY[0]), tokens(sizes, sizes.target, VOCABULARY[1])


def one(sizes: Sizes) -> Arrays:
    return (tokens(sizes, sizes.target, VOCABULARY[1]),)


def embedded(*lengths: str) -> Callable[[Sizes], Arrays]:
    def inputs(sizes: Sizes) -> Arrays:
        generator = np.random.default_rng(0)
        return tuple(generator.normal(1, 2, (sizes.batch, getattr(sizes, name), sizes.width)) for name in lengths)

    return inputs


class Source(NamedTuple):
    """Where a checkpoint comes from. narrow: steps that the module takes in float32 in every dtype."""

    dialect: str
    module: Callable[[Sizes], torch.nn.Module]
    inputs: Callable[[Sizes], Arrays]
    hyperparameters: Callable[[Sizes], dict[str, Any]] = lambda s: {"num_heads": s.heads}
    narrow: frozenset[str] = frozenset()


FLOAT32_TABLE = frozenset({"sinusoidal_positions"})
SOURCES = {
    "notebook-scratch": Source(
        "notebook-scratch",
        lambda s: NotebookScratch(*VOCABULARY, s.width, s.heads, 3, s.depth, 0),
        both,
        lambda s: {"num_heads": s.heads, "source_pad": 0, "target_pad": 0},
    ),
    "imdb-classifier, max": Source(
        "imdb-classifier",
        lambda s: CTransformer(s.width, s.heads, s.depth, 20, VOCABULARY[1], 5),
        one,
        lambda s: {"num_heads": s.heads, "pool": "max"},
    ),
    "imdb-classifier, mean, wide": Source(
        "imdb-classifier",
        lambda s: CTransformer(s.width, s.heads, s.depth, 20, VOCABULARY[1], 5, max_pool=False, wide=True),
        one,
        lambda s: {"num_heads": s.heads, "pool": "mean"},
    ),
    "transformer101": Source(
        "transformer101",
        lambda s: SeparateHeads(s.width, s.heads, s.width // s.heads, s.width // s.heads, "output_linear"),
        embedded("target"),
        lambda s: {},
    ),
    "prenorm-blog": Source(
        "prenorm-blog",
        lambda s: PrenormBlog(*VOCABULARY, s.width, s.heads, s.inner, s.depth, 0),
        both,
        lambda s: {"num_heads": s.heads, "source_pad": 0, "target_pad": 0},
        FLOAT32_TABLE,
    ),
    "prenorm-blog, heads": Source(
        "prenorm-blog",
        lambda s: SeparateHeads(s.width, s.heads, 4, 6, "linear"),
        embedded("source", "target", "target"),
        lambda s: {},
    ),
    "dawn": Source(
        "dawn",
        lambda s: Dawn(*VOCABULARY, s.width, s.heads, s.inner, s.depth),
        both,
        narrow=FLOAT32_TABLE,
    ),
}
