"""Position encodings in PyTorch (rules POS-1, POS-2), as `reference_numpy/positions.py` defines them."""

from __future__ import annotations

import torch
from jaxtyping import Float

from specification import checks
from specification.positions import angular_frequencies
from torch_impl.masks import readable


def sinusoidal_positions(
    length: int,
    width: int,
    *,
    offset: int = 0,
    exponent: str = "shared",
    dtype: str = "float32",
    device: torch.device | str | None = None,
) -> Float[torch.Tensor, "length width"]:
    """PE[p, 2i] = sin(p / 10000^(2i/E)), PE[p, 2i+1] = cos of the same angle, for p = offset, ..., offset + length - 1.

    `dtype` is a name such as "float32", and angles are float64 whatever it is.
    """
    checks.positions(length, width, offset, exponent, dtype)
    position = torch.arange(length, device=device) + offset
    angle = position[:, None] * torch.as_tensor(angular_frequencies(width, exponent), device=device)
    even = torch.arange(width, device=device) % 2 == 0
    return torch.where(even, torch.sin(angle), torch.cos(angle)).to(getattr(torch, dtype))


def learned_positions(
    table: Float[torch.Tensor, "N E"], length: int, *, offset: int = 0
) -> Float[torch.Tensor, "length E"]:
    """Rows offset, ..., offset + length - 1 of the table, as a new tensor."""
    if isinstance(offset, torch.Tensor) and (number := readable(offset)) is not None:
        offset = int(number)
    checks.learned_positions(table, length, offset)
    return table[offset : offset + length].clone()
