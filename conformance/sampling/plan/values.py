"""The sizes at which real implementations change their way, for each dimension.

Powers of two and their neighbours, where tiles and vectors begin and end. Widths, head counts and group ratios of
models in use. 32,767 and 65,535, where 16-bit indices end, and the second and third axis of a CUDA grid.
"""

from __future__ import annotations

from collections.abc import Iterable


def neighbouring_sizes(*powers: int) -> tuple[int, ...]:
    """2^n - 1, 2^n and 2^n + 1 for each n."""
    return tuple(2**n + step for n in powers for step in (-1, 0, 1))


LENGTHS = (
    *(3, 5, 7, 12, *neighbouring_sizes(*range(4, 17))),
    *(40, 80, 96, 100, 192, 200, 300, 384, 640, 768, 1000, 1536, 3000),
)
"""Keys; and queries, of which there may be one or two as well."""
WIDTHS = (
    *(1, 2, 3, 5, 8, 12, *neighbouring_sizes(*range(4, 10))),
    *(24, 40, 48, 72, 80, 96, 100, 112, 120, 160, 192, 320, 384, 576),
)
"""Of query and key, and of value. 192 with 128 is DeepSeek's attention, 576 with 512 its absorbed form."""
RATIOS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
"""Query heads to a key head."""
KEY_HEADS = (1, 2, 3, 4, 5, 8, *neighbouring_sizes(5, 6, 7), 12, 40, 71, 96)
BATCHES = (1, 2, 3, 5, *neighbouring_sizes(3, 4, 5, 6, 7, 8, 10, 12, 15, 16))
ROWS = (1, 2, 3, 5, 6, 7, 12, *neighbouring_sizes(*range(4, 17)), 40, 48, 50, 100, 300)
"""Of norms, and of all that works on rows."""
NORM_WIDTHS = (
    *(3, 5, 7, 12, *neighbouring_sizes(*range(4, 17))),
    *(40, 100, 320, 576, 768, 1000, 1600, 3072, 5120, 8200, 12288, 20480, 131072),
)
MODEL_WIDTHS = (2, 3, 5, 8, 12, *neighbouring_sizes(*range(4, 15)), 24, 40, 100, 320, 576, 768, 1000, 1600, 3072, 28672)
VOCABULARIES = (5, 11, *neighbouring_sizes(6, 8, 10, 12, 15, 16), 30522, 50257, 100277)
POSITIONS = (5, 12, *neighbouring_sizes(6, 8, 10, 12, 13, 15, 16), 131072)


def classes(values: Iterable[int], *bounds: int) -> tuple[tuple[int, ...], ...]:
    """The values cut into ranges: each but the last ends with a bound. Empty ranges are left out."""
    ordered = sorted(set(values))
    ends = (*bounds, ordered[-1])
    ranges = (tuple(n for n in ordered if low < n <= high) for low, high in zip((0, *bounds), ends, strict=True))
    return tuple(numbers for numbers in ranges if numbers)
