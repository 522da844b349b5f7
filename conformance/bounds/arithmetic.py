"""The model of rounding, and numbers that carry a bound on their own error through a computation.

Every floating-point operation returns exact * (1 + r) + t with |r| <= u, the unit roundoff, and |t| <= tiny, the
smallest normal number (results below it may be flushed to 0, as XLA does on CPU and fast GPU modes do).

Sums. Adding n terms a_j one after the other, in any order, is off by at most gamma(n) = n u / (1 - n u) times the
largest partial sum, besides the rounding of the terms themselves. That is at most the sum A of absolute terms. In an
order that has nothing to do with the numbers, a partial sum differs from its share of the whole sum with a standard
deviation of at most sqrt(sum a_j^2) / 2 (sampling without replacement); DEVIATIONS of these are exceeded with a
probability below 2 n exp(-DEVIATIONS^2 / 2), which for n = 1000 is 5e-15. The smaller of A and |sum a_j| + DEVIATIONS
sqrt(sum a_j^2) / 2 is taken for matrix products, whose terms have both signs, and A for sums of weights, squares and
sizes. Rounding errors are not taken to be independent there: what is added to a sum 2^24 times as large is lost, each
time with the same sign, and matrix units cut partial sums off towards zero. A row of 31,000 float32 weights, one of
them large, whose products with the values a matrix product for narrow values adds one after the other, is off by 20
sqrt(n) u A (torch 2.13.0 on a CPU).

Linear layers. Their terms are products with weights of either sign that nobody chose, so that rounding errors are as
good as independent: A is multiplied by gamma(DEVIATIONS sqrt(n)), where that is less (Higham and Mary, SIAM J. Sci.
Comput. 41, 2019; Ipsen and Zhou, arXiv 1906.10465).

Roundings that a subject declares, of attention weights and of the sides of matrix products, come after that.

A format has a unit roundoff u~ and an absolute error t~ for numbers too small for it: half a subnormal step in float16,
a flush to 0 in bfloat16 and in TF32, which has float32's range and float16's digits. Whoever rounds x' to it holds
x'(1 + r) + t with |r| <= u~ and |t| <= t~. Nothing is promised for numbers beyond the format's range.

Products. Both sides of every matrix product are rounded, and the sum is kept in float32 (float64 for float64): to
first order 2 u~ of the sum of absolute terms. A scale may be put on a side before it is rounded; its own rounding is
relative and does not mind, but t~ then counts by 1 / |scale|. A side that is an input, or was rounded to the inputs'
dtype, is held as it is if the format has every number of that dtype, and no scale is put on it. Where it is not, the
gradient of the rounded side is rounded to the same format by automatic differentiation, which differentiates the
rounding as if it were none.

Weights. P_j is held as P_j (1 + r_j) wherever it is multiplied: with values, with cotangents and with their products,
in whichever order it is rounded and divided by the row's sum. If the sum is that of the unrounded exponentials the
output is off by sum_j P_j r_j f_j v_j (f the dropout factor), if it is that of the rounded ones by
sum_j P_j r_j (f_j v_j - o). The larger of the two is taken; a common factor of the r_j does not cancel in the first.
The gradients of scores are rounded before they are multiplied with keys and queries. Automatic differentiation rounds
the gradient of the weights to the format too, and a backward pass that takes rowsum(O_bar * O) for the mean may take
the output as it was returned, in its own dtype.

Scores. The product of query and key is rounded, and its product with the scale; the softcap's quotient, its tanh and
its product; the sum with the bias. Automatic differentiation rounds as often on the way back: the gradient that comes
out of the softmax, which is that of the bias too, and then at each step before it. The slope of tanh is computed from
the rounded tanh.

Shared heads. n query heads share a key head. A function that repeats keys and values in the inputs' 16 bits rounds the
gradient g_h of each of these heads to them: an error of u~ |g_h| + t~. If the sum is kept in float32, that is all. If
it is kept in 16 bits too, n - 1 additions are rounded. The last rounding is that of the result. Every partial sum is at
most sum |g_h|, so the others add (1 + u~)^(n - 2) - 1 times it.

Normalised rows. The row n of a norm is rounded before the weight multiplies it. Automatic differentiation rounds the
gradient that comes back through this rounding, O_bar * weight. If the weight has 16 bits, so has its product with n, to
which a bias is added, and each row's term of the weight's gradient, O_bar * n. Nothing inside the norm is rounded, nor
is the sum over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

Count = TypeVar("Count", float, np.ndarray)

DEVIATIONS = 9.0
EXP = 6.0
"""Error of exp and exp2 in units of u: 3 units in the last place (NumPy documents 2.5 for float32, CUDA 2)."""
LOG = 8.0
"""Error of log in units of u (NumPy documents 3.9 units in the last place for float32)."""
POW = 8.0
"""Error of pow in units of u: 4 units in the last place (CUDA documents 4 for float32)."""
TANH = 10.0
"""Error of tanh, erf, sin and cos in units of u, relative to 1 for the last two: 5 units in the last place."""

UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}
SMALLEST = {"float16": 2.0**-25, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
"""Absolute error of a result too small to be normal: half a subnormal step in float16, a flush to 0 elsewhere."""
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
"""The largest number of every dtype but float64."""
ARITHMETIC = "arithmetic"
"""The part of a rounding that names the dtype of all arithmetic."""


class Format(NamedTuple):
    """A format to which numbers are rounded on the way: its unit roundoff, and its error below normal numbers."""

    name: str
    unit: float
    tiny: float


FORMATS = {name: Format(name, UNIT_ROUNDOFF[name], SMALLEST[name]) for name in ("float16", "bfloat16")}
FORMATS["tf32"] = Format("tf32", 2.0**-11, 2.0**-126)


@dataclass(frozen=True)
class Precision:
    """Unit roundoffs of the arithmetic inside and of the dtype to which results are rounded (ATT-9, NORM-2).

    dtype: of the inputs. weights to combined: the formats that a subject declares (see above, and `rotary.py`); None
    where the arithmetic inside is kept. declared: names of the other conventions that it declares, such as "saved"
    (attention's backward pass takes the weights from one log-sum-exp for each row). parts: how many parts of the keys
    are merged, where that is known, and 0 where it is not. No subject declares another
    arithmetic inside; a diagnosis asks what that of 16 bits would allow.
    """

    inner: float
    inner_tiny: float
    output: float
    output_tiny: float
    dtype: str = ""
    weights: Format | None = None
    products: Format | None = None
    scores: Format | None = None
    shared_heads: Format | None = None
    shared_sums: Format | None = None
    normalized: Format | None = None
    sines: Format | None = None
    rotation: Format | None = None
    combined: Format | None = None
    declared: frozenset[str] = frozenset()
    parts: int = 0

    @classmethod
    def make(cls, dtype: str, rounding: Mapping[str, str] | None = None) -> Precision:
        inner = "float64" if dtype == "float64" else "float32"
        declared = {name: value for name, value in (rounding or {}).items() if name not in ("ranks", "shard")}
        inner, parts = declared.pop(ARITHMETIC, inner), int(declared.pop("parts", 0))
        formats = {part: FORMATS[name] for part, name in declared.items() if name in FORMATS}
        units = UNIT_ROUNDOFF[inner], SMALLEST[inner], UNIT_ROUNDOFF[dtype], SMALLEST[dtype]
        return cls(*units, dtype, **formats, declared=frozenset(declared) - formats.keys(), parts=parts)

    @property
    def default_precision(self) -> Precision:
        """Without what a subject declares."""
        return Precision(self.inner, self.inner_tiny, self.output, self.output_tiny, self.dtype)

    def gamma(self, n: Count) -> Count:
        """Relative error of a sum of n terms, or of n successive roundings; infinity where nothing is left of it."""
        lost = n * self.inner
        if isinstance(lost, np.ndarray):
            return np.where(lost < 1, lost / (1 - lost), np.inf)
        return lost / (1 - lost) if lost < 1 else np.inf


class ValueAndError(NamedTuple):
    value: np.ndarray
    error: np.ndarray


class Approx(ValueAndError):
    """A value, computed in float64 as if exact, and a bound on the error that an implementation's own has.

    What follows from them is computed once: every block of queries takes the same keys and values.
    """

    @cached_property
    def size(self) -> np.ndarray:
        """The largest absolute value that an implementation may hold."""
        return np.abs(self.value) + self.error

    @cached_property
    def squares(self) -> np.ndarray:
        """Those of `size`."""
        with np.errstate(over="ignore"):
            return self.size**2

    @cached_property
    def transposed(self) -> Approx:
        return Approx(np.swapaxes(self.value, -1, -2), np.swapaxes(self.error, -1, -2))

    @cached_property
    def is_exact(self) -> bool:
        return not self.error.any()

    @cached_property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.size).all())

    def reshape(self, *shape: int) -> Approx:
        return Approx(self.value.reshape(shape), self.error.reshape(shape))

    def select(self, index: Any) -> Approx:
        return Approx(self.value[index], self.error[index])


def exact(array: np.ndarray) -> Approx:
    wide = np.asarray(array, np.float64)
    return Approx(wide, np.zeros_like(wide))


def round_output(x: Approx, p: Precision) -> Approx:
    """Rounded to the output dtype. Where the result would be the same dtype as inside, nothing is added."""
    extra = 0.0 if p.output == p.inner else p.output * x.size + p.output_tiny
    return Approx(x.value, x.error + extra)


def add(x: Approx, y: Approx, p: Precision) -> Approx:
    value = x.value + y.value
    error = x.error + y.error
    return Approx(value, error + p.inner * (np.abs(value) + error) + p.inner_tiny)


def multiply(x: Approx, y: Approx, p: Precision, roundings: int = 1) -> Approx:
    value = x.value * y.value
    error = x.error * np.abs(y.value) + np.abs(x.value) * y.error + x.error * y.error
    return Approx(value, error + roundings * p.inner * (np.abs(value) + error) + p.inner_tiny)


class Sums(NamedTuple):
    """What a matrix product adds up. Those of parts of the terms, added, are those of all of them."""

    value: np.ndarray
    error: np.ndarray | float  # what the sides' own errors become
    absolute: np.ndarray  # the sums of absolute terms
    squares: np.ndarray  # at least the sums of squared terms
    left: np.ndarray  # the sums of either side's sizes
    right: np.ndarray

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        return Sums(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def sums(x: Approx, y: Approx, n: int, squared: bool = True) -> Sums:
    """Of x @ y.

    n: the terms in all, of which these may be a part. squared: whether the sums of squares are worth a product of their
    own.
    """
    error: np.ndarray | float = 0.0
    if not (x.is_exact and y.is_finite):  # what is exact costs no product
        error = error + x.error @ y.size
    if not (y.is_exact and np.isfinite(x.value).all()):
        error = error + np.abs(x.value) @ y.error
    left, right = np.sum(x.size, axis=-1, keepdims=True), np.sum(y.size, axis=-2, keepdims=True)
    absolute = x.size @ y.size
    with np.errstate(over="ignore", invalid="ignore"):
        # Of few terms in all the absolute ones decide anyway. A few of many are no such case: their squares are added.
        squares = x.squares @ y.squares if squared and n > DEVIATIONS**2 / 4 else absolute**2
    return Sums(x.value @ y.value, error, absolute, squares, left, right)


def sum_terms(
    s: Sums, n: int, p: Precision, roundings: int = 0, scale: float = 1.0, independent: bool = False
) -> Approx:
    """scale * the sums of n terms in all, with `roundings` more for putting the scale on either side or on the sum.

    independent: of a linear layer.
    """
    if independent:
        error = abs(scale) * p.gamma(min(n, DEVIATIONS * np.sqrt(n)) + roundings) * s.absolute
    else:
        error = np.sqrt(s.squares)
        error *= DEVIATIONS / 2
        error += np.abs(s.value)
        error += s.error
        np.fmin(s.absolute, error, out=error)
        error *= abs(scale) * p.gamma(n)
        error += (abs(scale) * p.gamma(1 + roundings)) * s.absolute
    if np.ndim(s.error):
        error += abs(scale) * s.error
    # Numbers too small to be normal may be lost: products, and either side's entries once they are scaled.
    smallest = max(1.0, abs(scale)) * p.inner_tiny
    error += smallest * (n + roundings + s.left)
    error += smallest * s.right
    return Approx(s.value if scale == 1 else scale * s.value, error)


def matmul(
    x: Approx, y: Approx, p: Precision, roundings: int = 0, scale: float = 1.0, independent: bool = False
) -> Approx:
    """scale * x @ y; see `sum_terms`."""
    n = x.value.shape[-1]
    return sum_terms(sums(x, y, n, squared=not independent), n, p, roundings, scale, independent)


def total(x: Approx, axis: int | tuple[int, ...], p: Precision, keepdims: bool = False) -> Approx:
    axes = (axis,) if isinstance(axis, int) else axis
    n = int(np.prod([x.value.shape[a] for a in axes]))
    error = np.sum(x.error, axis=axes, keepdims=keepdims)
    rounding = p.gamma(n) * np.sum(x.size, axis=axes, keepdims=keepdims)
    return Approx(np.sum(x.value, axis=axes, keepdims=keepdims), error + rounding)


def select(condition: np.ndarray, x: Approx) -> Approx:
    """x where the condition holds, an exact 0 elsewhere."""
    if condition.all():
        return x
    return Approx(np.where(condition, x.value, 0), np.where(condition, x.error, 0))


def transpose(x: Approx) -> Approx:
    return x.transposed


def map_approx(x: Approx, function: Callable[[np.ndarray], np.ndarray]) -> Approx:
    """The same rearrangement of value and error: reshape, transpose, index."""
    return Approx(function(x.value), function(x.error))


# --- roundings that a subject declares --------------------------------------------------------------------------------


DIGITS = {"float16": ("float16", "tf32"), "bfloat16": ("bfloat16", "tf32"), "float32": (), "float64": ()}
"""For every dtype the formats that hold each of its numbers."""


def round_approx(x: Approx, form: Format | None, scale: float = 1.0) -> Approx:
    """x in the format, before or after it is multiplied by the scale; as it is without a format."""
    if form is None:
        return x
    smallest = form.tiny / min(1.0, abs(scale) or 1.0)
    return Approx(x.value, x.error + form.unit * x.size + smallest)


def partial_sums(added: Approx, size: np.ndarray, n: int, form: Format | None) -> Approx:
    """A sum of n terms, of which every partial sum is rounded to the format. size: the sum of the terms' sizes."""
    if form is None:
        return added
    between = np.expm1((n - 2) * np.log1p(form.unit))
    return Approx(added.value, added.error + between * size + (n - 1) * form.tiny)


def holds_products(p: Precision) -> bool:
    """Whether arrays in the inputs' dtype are sides of products as they are."""
    return p.products is None or p.products.name in DIGITS[p.dtype]


def side(x: Approx, p: Precision) -> Approx:
    """A side of a matrix product that is an input, or was rounded to the inputs' dtype."""
    return x if holds_products(p) else round_approx(x, p.products)


def scaled_side(x: Approx, p: Precision, scale: float) -> Approx:
    """A side on which a scale, or its square root, may be put before it is rounded."""
    return round_approx(x, p.products, scale)


def side_gradient(x: Approx, p: Precision) -> Approx:
    """The gradient of a side, which passes through the side's rounding."""
    return x if holds_products(p) else round_approx(x, p.products)


def weight_format(p: Precision) -> Format | None:
    """What becomes of a weight on its way into a matrix product: one rounding, or two to different formats."""
    if p.weights is None or p.products is None or p.weights == p.products:
        return p.weights or p.products
    unit = (1 + p.weights.unit) * (1 + p.products.unit) - 1
    return Format(f"{p.weights.name}, {p.products.name}", unit, p.weights.tiny + p.products.tiny)
