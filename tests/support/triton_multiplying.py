"""A kernel around the product of weights and values; imported anew by the test, so that it is interpreted or not."""

import triton
import triton.language as tl

from torch_impl.engines.triton.tiles import weighted_sum


@triton.jit
def multiply(weights, values, found):
    """16 by 16 each."""
    place = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    total = weighted_sum(tl.load(weights + place), tl.load(values + place), tl.zeros([16, 16], tl.float32))
    tl.store(found + place, total)
