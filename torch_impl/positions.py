"""Position encodings in PyTorch (rules POS-1, POS-2), as `reference_numpy/positions.py` defines them."""

from __future__ import annotations

import torch
from jaxtyping import Float

from specification import checks
from specification.positions import angular_frequencies
from torch_impl.masks import readable

__all__ = ["learned_positions", "sinusoidal_positions"]


def sinusoidal_positions(
    length: int,
    width: int,
    *,
    offset: int = 0,
    exponent: str = "shared",
    dtype: str = "float32",
    device: torch.device | str | None = None,
) -> Float[torch.Tensor, "length width"]:
    """Compute PE[p, 2i] = sin(p / 10000^(2i/E)) and PE[p, 2i+1] = cos of the same angle (POS-1).

    Args:
        length: The number of positions p = offset, ..., offset + length - 1.
        width: E. An odd width drops the last cosine.
        offset: The first position.
        exponent: "shared", or, for a dialect, "doubled": column c then has an angle of its own, p / 10000^(2c/E).
        dtype: The name of a dtype, such as "float32".
        device: Where the result is put.

    Returns:
        A new array [length, width] in `dtype`, computed in float64 and rounded once.

    Raises:
        TypeError: Dtypes or structures that are not as described.
        ValueError: Sizes or numbers that are not as described.
    """
    checks.positions(length, width, offset, exponent, dtype)
    position = torch.arange(length, device=device) + offset
    angle = position[:, None] * torch.as_tensor(angular_frequencies(width, exponent), device=device)
    even = torch.arange(width, device=device) % 2 == 0
    return torch.where(even, torch.sin(angle), torch.cos(angle)).to(getattr(torch, dtype))


def learned_positions(
    table: Float[torch.Tensor, "N E"], length: int, *, offset: int = 0
) -> Float[torch.Tensor, "length E"]:
    """Take rows offset, ..., offset + length - 1 of the table (POS-2).

    Args:
        table: [N, E].
        length: How many rows.
        offset: The first row.

    Returns:
        A new array [length, E] in the dtype of table.

    Raises:
        ValueError: Rows past the end of the table.
    """
    if isinstance(offset, torch.Tensor) and (number := readable(offset)) is not None:
        offset = int(number)
    checks.learned_positions(table, length, offset)
    return table[offset : offset + length].clone()
