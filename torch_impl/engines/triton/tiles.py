# mypy: allow-untyped-defs, allow-incomplete-defs
"""What the Triton kernels do with a tile: read it, multiply it, and settle which of its pairs are allowed.

How 16-bit inputs keep float32 weights (ATT-9)
----------------------------------------------
A tensor core multiplies two 16-bit numbers exactly and adds the products in float32. Scores, and the cotangent times
the values, are such products of inputs. In the others, weights or their gradients times inputs, one side is float32 and
would be rounded to 16 bits first: a relative error of 2^-9 (bfloat16) or 2^-12 (float16), where float32 has u = 2^-24.
So that side, x, is taken apart into numbers that the tensor core takes as they are, and each part is multiplied:

- bfloat16 has 8 digits and the exponents of float32. The 8 leading digits of x are the first part; what is left, x less
  that part, is exact and has at most 16; its 8 leading digits are the second part; at most 8 are left, the third part.
  The three add up to x exactly. What is below 2^-126 may be lost, as it may be anywhere in float32.
- float16 has not the exponents: a weight below 2^-14 would lose digits. But TF32 has 11 digits, as many as float16, and
  the exponents of float32, so it holds every float16 number, and the inputs are multiplied in it exactly. With x in
  [2^e, 2^(e+1)), the first part is x rounded to 11 digits, off by at most 2^(e-11), and what is left is exact: a
  multiple of 2^(e-23) of 12 digits or 2^(e-11) itself. The second part is that rounded to 11 digits, off by at most
  2^(e-23), half of the last of the 11. The two differ from x by at most 2^-23 |x| = 2 u |x|, which is one rounding more
  of a weight.

float32 is multiplied in float32 ("ieee"): no TF32.

Triton's interpreter (seen with 3.9) multiplies the bits of bfloat16 numbers as if they were integers, and TF32 as
float32. There, bfloat16 operands are widened and TF32 ones cut to 11 digits, which is what the hardware does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from torch_impl.engines.triton.layout import MASK

BFLOAT16_DIGITS = tl.constexpr(-(1 << 16))
"""The sign, the exponent and 8 digits of a float32, one of them implied."""
TF32_DIGITS = tl.constexpr(-(1 << 13))
HALF_A_DIGIT = tl.constexpr(1 << 12)


@triton.jit
def rows_of(matrix, stride, rows, length, width, WIDTH: tl.constexpr):
    """Some rows of a matrix [length, width], as [rows, WIDTH]; outside of it 0."""
    columns = tl.arange(0, WIDTH)
    inside = (rows < length)[:, None] & (columns < width)[None, :]
    return tl.load(matrix + rows.to(tl.int64)[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def put_rows(matrix, stride, rows, length, width, values, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)
    inside = (rows < length)[:, None] & (columns < width)[None, :]
    tl.store(matrix + rows.to(tl.int64)[:, None] * stride + columns[None, :], values, mask=inside)


@triton.jit
def pair_products(left, right):
    """left . right, both in the dtype of the inputs, for every pair of rows, in float32."""
    if INTERPRETED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, tl.trans(right), input_precision="ieee")


@triton.jit
def weighted_sum(weights, values, total):
    """total + weights . values; weights in float32, values in the dtype of the inputs."""
    if values.dtype == tl.float32:
        total = tl.dot(weights, values, total, input_precision="ieee")
    elif values.dtype == tl.bfloat16:
        for _ in tl.static_range(3):
            part = digits(weights, 0, BFLOAT16_DIGITS)
            weights = weights - part
            if INTERPRETED:
                total = tl.dot(part.to(tl.bfloat16).to(tl.float32), values.to(tl.float32), total)
            else:
                total = tl.dot(part.to(tl.bfloat16), values, total)
    else:
        wide = values.to(tl.float32)
        for _ in tl.static_range(2):
            part = digits(weights, HALF_A_DIGIT, TF32_DIGITS)
            weights = weights - part
            if INTERPRETED:
                total = tl.dot(digits(part, 0, TF32_DIGITS), digits(wide, 0, TF32_DIGITS), total)
            else:
                total = tl.dot(part, wide, total, input_precision="tf32")
    return total


@triton.jit
def digits(numbers, added: tl.constexpr, kept: tl.constexpr):
    """float32 numbers with those of their bits that are kept, after adding to the bits."""
    bits = numbers.to(tl.int32, bitcast=True)
    return ((bits + added) & kept).to(tl.float32, bitcast=True)


@triton.jit
def allowed_pairs(marks, layout, batch, head, rows, columns, Q, K):
    """Whether queries may attend to keys; rows [rows, 1] and columns [1, columns], or the other way round."""
    reach = marks.reach + batch * 3
    distance = columns - rows
    allowed = (distance >= tl.load(reach)) & (distance <= tl.load(reach + 1))
    allowed = allowed & (columns < tl.load(reach + 2)) & (rows < Q)
    row, column = rows.to(tl.int64), columns.to(tl.int64)
    if marks.keep is not None:
        allowed = allowed & (tl.load(marks.keep + batch * K + column, mask=columns < K, other=0) != 0)
    if marks.query_ids is not None:
        query_ids = tl.load(marks.query_ids + batch * Q + row, mask=rows < Q, other=0)
        allowed = allowed & (query_ids == tl.load(marks.key_ids + batch * K + column, mask=columns < K, other=0))
    if marks.array is not None:
        strides = layout + MASK
        place = marks.array + batch * tl.load(strides) + head * tl.load(strides + 1)
        place += row * tl.load(strides + 2) + column * tl.load(strides + 3)
        allowed = allowed & (tl.load(place, mask=(rows < Q) & (columns < K), other=0) != 0)
    return allowed


INTERPRETED = tl.constexpr(not isinstance(allowed_pairs, triton.JITFunction))
