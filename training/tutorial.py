"""The tutorial "Coding a Transformer from Scratch": its modules and its loop, written after its text.

Nothing of the project's own arithmetic is used: this is what our run is compared with, and timed against.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """Queries and keys each divided by the fourth root of E. In the "wide" one every head is as wide as the model."""

    def __init__(self, emb: int, heads: int, wide: bool = False) -> None:
        super().__init__()
        together = emb * heads if wide else emb
        self.heads = heads
        self.tokeys = nn.Linear(emb, together, bias=False)
        self.toqueries = nn.Linear(emb, together, bias=False)
        self.tovalues = nn.Linear(emb, together, bias=False)
        self.unifyheads = nn.Linear(together, emb)

    def fold(self, x: Tensor) -> Tensor:
        """[b, t, h * s] as [b * h, t, s]."""
        b, t, together = x.size()
        s = together // self.heads
        return x.view(b, t, self.heads, s).transpose(1, 2).contiguous().view(b * self.heads, t, s)

    def forward(self, x: Tensor) -> Tensor:
        b, t, e = x.size()
        keys, queries, values = (self.fold(to(x)) for to in (self.tokeys, self.toqueries, self.tovalues))
        queries, keys = queries / e ** (1 / 4), keys / e ** (1 / 4)
        weights = F.softmax(torch.bmm(queries, keys.transpose(1, 2)), dim=2)
        out = torch.bmm(weights, values).view(b, self.heads, t, -1)
        return self.unifyheads(out.transpose(1, 2).contiguous().view(b, t, -1))


class Block(nn.Module):
    """Attention and feed-forward, each with a residual connection, a norm, and dropout behind it."""

    def __init__(self, emb: int, heads: int, dropout: float, wide: bool) -> None:
        super().__init__()
        self.mhattention = SelfAttention(emb, heads, wide)
        self.norm1, self.norm2 = nn.LayerNorm(emb), nn.LayerNorm(emb)
        self.ff = nn.Sequential(nn.Linear(emb, 4 * emb), nn.ReLU(), nn.Linear(4 * emb, emb))
        self.do = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.do(self.norm1(self.mhattention(x) + x))
        return self.do(self.norm2(self.ff(x) + x))


class CTransformer(nn.Module):
    """No mask; pooled over time; log-softmax."""

    def __init__(
        self,
        emb: int,
        heads: int,
        depth: int,
        seq_length: int,
        num_tokens: int,
        num_classes: int,
        max_pool: bool = True,
        dropout: float = 0.0,
        wide: bool = False,
    ) -> None:
        super().__init__()
        self.max_pool = max_pool
        self.token_embedding = nn.Embedding(num_tokens, emb)
        self.pos_embedding = nn.Embedding(seq_length, emb)
        self.tblocks = nn.Sequential(*(Block(emb, heads, dropout, wide) for _ in range(depth)))
        self.toprobs = nn.Linear(emb, num_classes)
        self.do = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embedding(tokens)
        b, t, e = x.size()
        x = self.do(x + self.pos_embedding(torch.arange(t))[None, :, :].expand(b, t, e))
        x = self.tblocks(x)
        x = x.max(dim=1)[0] if self.max_pool else x.mean(dim=1)
        return F.log_softmax(self.toprobs(x), dim=1)


def optimizer_of(
    model: nn.Module, rate: float, warmup: int
) -> tuple[torch.optim.Adam, torch.optim.lr_scheduler.LambdaLR]:
    """Adam, and a scheduler with min(i / warmup, 1)."""
    optimizer = torch.optim.Adam(lr=rate, params=model.parameters())
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(i / warmup, 1.0))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LambdaLR,
    batches: Iterable[tuple[Tensor, Tensor]],
) -> Iterator[float]:
    """Take a step for every batch of tokens and labels, and yield its loss."""
    model.train()
    for tokens, labels in batches:
        optimizer.zero_grad()
        loss = F.nll_loss(model(tokens), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        yield float(loss.item())
