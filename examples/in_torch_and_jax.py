# %% [markdown]
# # The same pieces in PyTorch and in JAX
#
# Attention, multi-head attention, layer norm and a block, twice: once as one writes them in PyTorch, once in JAX. After
# every step the judge says what came of it, in *bounds*: 1 is the most that honest arithmetic may be off by. Most of
# what goes wrong on the way is no mathematics but a surprise of the framework, and each is shown where it bites.
#
# `examples/one_query.py` builds the same pieces in NumPy and says why they are made so.

# %%
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array
from torch import Tensor

import conformance
from conformance.models.agreement import agreement
from conformance.models.error_propagation import carried_bound, compare_within_bound
from conformance.models.structures import widen_parameters
from specification import Causal, Configuration
from specification import parameters as structures

torch.set_num_threads(1)
SEED = 20260107
generator = np.random.default_rng(0)
MASKED = ["causal", "window", "lengths", "padding", "segments", "dense", "offset", "scale", "cross"]


def check(
    function: Callable[..., Any],
    operation: str,
    arrays: str,
    rules: list[str],
    dtypes: Sequence[str] = ("float32",),
    **claims: Any,
) -> conformance.Report:
    """What the judge finds: whether the function conforms, and every cause of a violation with its worst number."""
    function = jax.jit(function) if arrays == "jax" else function
    claims |= {"arrays": arrays, "rules": rules, "dtypes": dtypes}
    report = conformance.check(function, operation, effort="quick", profile="strict", seed=SEED, **claims)
    verdict = f"conforms, worst {report.worst:.2f} bounds" if report.conforms else "violates"
    print(f"  {report.subject}: {verdict}, {report.cases} cases")
    for cause in report.causes:
        print(f"    {cause.lead.rule}: {conformance.describe(cause)}; {conformance.describe(cause.lead.finding)}")
    return report


def check_attention(function: Callable[..., Any], arrays: str, rules: list[str], **claims: Any) -> conformance.Report:
    """As `check`. NaN behind a mask may come through in all that is written here, and that is declared."""
    claims = {"supports": [*MASKED, "gradients"], "conventions": {"isolation": "finite"}} | claims
    return check(function, "attention", arrays, rules, **claims)


# %% [markdown]
# ## Attention, and its first surprise: -inf and NaN
#
# What forbids a pair is a score of -inf, whose exponential is 0. For JAX everything is put under `jax.jit`; why, comes
# below.


# %%
def torch_literal(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, dim=-1) @ value


def jax_literal(
    query: Array, key: Array, value: Array, *, mask: Array | None = None, scale: float | None = None
) -> Array:
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jax.nn.softmax(scores, axis=-1) @ value


print("literally:")
for function, arrays in ((torch_literal, "torch"), (jax_literal, "jax")):
    report = check_attention(function, arrays, ["ATT-6"], supports=MASKED)
    assert [violation.rule for violation in report.violations] == ["ATT-6"]

# %% [markdown]
# In a row that may attend to nothing all is -inf, and -inf - (-inf) is NaN. It is tempting to cover that up afterwards:
# `where(empty, 0, weights)`. The output is right then, and the gradient is still NaN, in both frameworks: the gradient
# of `where` is 0 for the branch that was not taken, and 0 times the softmax's NaN is NaN.

# %%
scores, empty = np.array([[0.5, 1.0], [-np.inf, -np.inf]], "float32"), np.array([[False], [True]])


def covered_up(scores: Array) -> Array:
    return jnp.where(empty, 0, jax.nn.softmax(scores, axis=-1))[:, 0].sum()


leaf = torch.from_numpy(scores).requires_grad_()
torch.where(torch.from_numpy(empty), 0, torch.softmax(leaf, dim=-1))[:, 0].sum().backward()


def show(name: str, gradient: Any) -> None:
    print(f"covered up, gradient in {name}:", gradient.tolist())
    assert np.isnan(np.asarray(gradient)[1]).all()


show("torch", leaf.grad)
show("jax", jax.grad(covered_up)(scores))

# %% [markdown]
# NaN must not arise in the first place. An empty row is given scores that are finite, and its weights are set to 0
# after the softmax.


# %%
def torch_mended(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        return torch.softmax(scores, dim=-1) @ value
    nothing = ~mask.any(dim=-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(~(mask | nothing), -torch.inf), dim=-1)
    return weights.masked_fill(~mask, 0) @ value


def jax_mended(
    query: Array, key: Array, value: Array, *, mask: Array | None = None, scale: float | None = None
) -> Array:
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is None:
        return jax.nn.softmax(scores, axis=-1) @ value
    nothing = ~mask.any(axis=-1, keepdims=True)
    weights = jax.nn.softmax(jnp.where(mask | nothing, scores, -jnp.inf), axis=-1)
    return jnp.where(mask, weights, 0) @ value


print("mended:")
for function, arrays in ((torch_mended, "torch"), (jax_mended, "jax")):
    report = check_attention(function, arrays, ["ATT-6", "ATT-12"])
    assert report.conforms, report

# %% [markdown]
# ## Dtypes
#
# Three frameworks, three habits. NumPy takes its own scalars seriously: `np.sqrt(16)` is a float64 and makes a float32
# array one. PyTorch takes any number for a plain one. JAX does as NumPy does, also in 16 bits, where float32 scalars
# widen; and it has no float64 at all unless asked for (`jax_enable_x64`), without a word.

# %%
root = np.sqrt(np.float64(16))
print("float32 array * np.float64:  NumPy", (np.ones(2, "float32") * root).dtype, end="")
print("   PyTorch", (torch.ones(2) * root).dtype)
halves = jnp.ones(2, "bfloat16")
print("bfloat16 * 0.5:", (halves * 0.5).dtype, "  bfloat16 * np.float32(0.5):", (halves * np.float32(0.5)).dtype)
with jax.enable_x64(False):
    print("jnp.asarray of a float64:", jnp.asarray(np.pi * np.ones(2)).dtype)
with jax.enable_x64(True):
    print("the same with x64:       ", jnp.asarray(np.pi * np.ones(2)).dtype)


# %%
def jax_by_numpy_scale(
    query: Array, key: Array, value: Array, *, mask: Array | None = None, scale: float | None = None
) -> Array:
    scale = 1 / np.sqrt(query.shape[-1]) if scale is None else scale
    return jax_mended(query, key, value, mask=mask, scale=scale)


print("scale = 1 / np.sqrt(D):")
report = check_attention(jax_by_numpy_scale, "jax", ["ATT-8"], dtypes=["bfloat16"])
assert not report.conforms

# %% [markdown]
# Nor is a result of the right dtype enough. In 16-bit inputs every step above rounds to 16 bits, and the judge asks for
# one rounding, at the end. So inputs are widened first, and the result is narrowed.

# %%
print("all in bfloat16:")
report = check_attention(torch_mended, "torch", ["ATT-5"], dtypes=["bfloat16"], shrink=False)
assert not report.conforms


def torch_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    wide = (array.to(torch.promote_types(array.dtype, torch.float32)) for array in (query, key, value))
    return torch_mended(*wide, mask=mask, scale=scale).to(query.dtype)


def jax_attention(
    query: Array, key: Array, value: Array, *, mask: Array | None = None, scale: float | None = None
) -> Array:
    wide = (array.astype(jnp.promote_types(array.dtype, jnp.float32)) for array in (query, key, value))
    return jax_mended(*wide, mask=mask, scale=scale).astype(query.dtype)


print("widened:")
for function, arrays in ((torch_attention, "torch"), (jax_attention, "jax")):
    report = check_attention(function, arrays, ["ATT-5", "ATT-9"], dtypes=["bfloat16"], supports=MASKED)
    assert report.conforms, report

# %% [markdown]
# ## TF32: float32 that is not
#
# GPUs multiply float32 faster if they may cut its 24 digits to 11 (TF32). PyTorch does not unless told to
# (`torch.set_float32_matmul_precision`); JAX does by default, and is told not to by `precision="highest"`. On a CPU
# nothing is cut, so here it is done by hand, to see whether the judge would notice. It does: digits are lost. TF32 it
# names on a GPU only.

# %%
PRECISION = "jax_default_matmul_precision"
print("PyTorch's default:", torch.get_float32_matmul_precision(), "  JAX's:", getattr(jax.config, PRECISION))
jax.config.update(PRECISION, "highest")  # from here on, should there be a GPU


def tf32(x: Tensor) -> Tensor:
    """Rounded to 11 binary digits; its gradient is that of nothing done."""
    bits = (x.detach().contiguous().view(torch.int32) + 0x1000) & ~0x1FFF
    return x + (bits.view(torch.float32) - x.detach())


def torch_in_tf32(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    return torch_attention(tf32(query), tf32(key), tf32(value), mask=mask, scale=scale)


report = check_attention(torch_in_tf32, "torch", ["ATT-5"], shrink=False)
assert not report.conforms

# %% [markdown]
# ## Changed in place
#
# PyTorch's tensors can be changed, and two things follow. A function may spoil what its caller still needs; the judge
# looks at the inputs after every call. And autograd may find that a number it had kept is no longer there.


# %%
def torch_in_place(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    query.mul_(query.shape[-1] ** -0.5 if scale is None else scale)
    return torch_attention(query, key, value, mask=mask, scale=1.0)


report = check_attention(torch_in_place, "torch", ["ATT-13"], supports=["dense", "scale", "cross"])
assert not report.conforms

exponentials = torch.zeros(3, requires_grad=True).exp()
exponentials /= exponentials.sum()
try:
    exponentials[0].backward()
except RuntimeError as error:
    print("  PyTorch:", str(error).split(":")[0])

# %% [markdown]
# JAX's arrays cannot be changed; `x.at[0].set(1)` is a new one. It also has no way to complain about an index within
# compiled code, so one that is out of range is moved to the edge.

# %%
row = jnp.arange(4.0)
try:
    row[0] = 1
except TypeError as error:
    print("  JAX:", str(error).split(".")[0])
print("  row.at[0].set(1):", row.at[0].set(1).tolist(), "  row[99]:", float(row[99]))

# %% [markdown]
# ## jit, and shapes
#
# `jax.jit` runs a function once with placeholders that have a shape and a dtype and no numbers, and compiles what it
# saw. Each new shape is traced and compiled anew; Python's `if` cannot ask for a number; and what decides about shapes,
# such as the number of heads, must be static.

# %%
traced: list[tuple[int, ...]] = []


@jax.jit
def total(x: Array) -> Array:
    traced.append(x.shape)
    return x.sum()


for length in (3, 3, 4, 3):
    total(jnp.ones(length))
print("called 4 times, traced for", traced)
assert traced == [(3,), (4,)]


@jax.jit
def halved_if_large(x: Array) -> Array:
    return x / 2 if x.sum() > 1 else x


try:
    halved_if_large(jnp.ones(3))
except jax.errors.TracerBoolConversionError as error:
    print(type(error).__name__, "- use jnp.where or jax.lax.cond")

# %% [markdown]
# ## Layer norm
#
# Both frameworks bring one. PyTorch's leaves rounding errors in a row of equal numbers in bfloat16, where the
# definition has the bias exactly. `jax.nn.standardize` by default takes the variance as the mean of the squares less
# the square of the mean, which has few digits left where the mean is large.


# %%
def torch_own_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float = 1e-5) -> Tensor:
    bias = None if bias is None else bias.to(x.dtype)
    return torch.nn.functional.layer_norm(x, weight.shape, weight.to(x.dtype), bias, eps)


def jax_own_norm(x: Array, weight: Array, bias: Array | None, *, eps: float = 1e-5) -> Array:
    normalized = jax.nn.standardize(x, axis=tuple(range(-weight.ndim, 0)), epsilon=eps)
    return normalized * weight + (0 if bias is None else bias)


def torch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float = 1e-5) -> Tensor:
    wide, axes = x.to(torch.promote_types(x.dtype, torch.float32)), tuple(range(-weight.ndim, 0))
    corner: tuple[Any, ...] = (..., *(slice(0, 1) for _ in axes))
    deviation = wide - (wide[corner] + (wide - wide[corner]).mean(axes, keepdim=True))
    deviation = deviation - deviation.mean(axes, keepdim=True)
    normalized = deviation / torch.sqrt((deviation**2).mean(axes, keepdim=True) + eps)
    return (normalized * weight + (0 if bias is None else bias)).to(x.dtype)


def jax_layer_norm(x: Array, weight: Array, bias: Array | None, *, eps: float = 1e-5) -> Array:
    wide, axes = x.astype(jnp.promote_types(x.dtype, jnp.float32)), tuple(range(-weight.ndim, 0))
    corner = (..., *(slice(0, 1) for _ in axes))
    deviation = wide - (wide[corner] + (wide - wide[corner]).mean(axes, keepdims=True))
    deviation = deviation - deviation.mean(axes, keepdims=True)
    normalized = deviation / jnp.sqrt((deviation**2).mean(axes, keepdims=True) + eps)
    return (normalized * weight + (0 if bias is None else bias)).astype(x.dtype)


report = check(torch_own_norm, "layer_norm", "torch", ["NORM-3"], dtypes=["bfloat16"])
assert not report.conforms
report = check(jax_own_norm, "layer_norm", "jax", ["NORM-4"])
assert not report.conforms
for norm, arrays in ((torch_layer_norm, "torch"), (jax_layer_norm, "jax")):
    report = check(norm, "layer_norm", arrays, ["NORM-3", "NORM-4"], dtypes=["float32", "bfloat16"])
    assert report.conforms, report

# %% [markdown]
# ## A block
#
# Parameters are named tuples of arrays, which JAX takes as they are (they are pytrees). The number of heads is a static
# argument of what is compiled.


# %%
def linear(parameters: Any, x: Any) -> Any:  # the same text in both
    return x @ parameters.weight + parameters.bias


def torch_multi_head(p: structures.MultiHeadAttention, x: Tensor, num_heads: int) -> Tensor:
    (B, T, _), parts = x.shape, (p.query, p.key, p.value)
    query, key, value = (linear(part, x).view(B, T, num_heads, -1).transpose(1, 2) for part in parts)
    return linear(p.output, torch_attention(query, key, value).transpose(1, 2).reshape(B, T, -1))


def jax_multi_head(p: structures.MultiHeadAttention, x: Array, num_heads: int) -> Array:
    (B, T, _), parts = x.shape, (p.query, p.key, p.value)
    query, key, value = (linear(part, x).reshape(B, T, num_heads, -1).swapaxes(1, 2) for part in parts)
    return linear(p.output, jax_attention(query, key, value).swapaxes(1, 2).reshape(B, T, -1))


def torch_block(p: structures.EncoderBlock, x: Tensor, num_heads: int) -> Tensor:
    assert p.attention_norm is not None
    assert p.feed_forward_norm is not None
    x = torch_layer_norm(x + torch_multi_head(p.attention, x, num_heads), *p.attention_norm)
    inner = torch.relu(linear(p.feed_forward.inner, x))
    return torch_layer_norm(x + linear(p.feed_forward.outer, inner), *p.feed_forward_norm)


def jax_block(p: structures.EncoderBlock, x: Array, num_heads: int) -> Array:
    assert p.attention_norm is not None
    assert p.feed_forward_norm is not None
    x = jax_layer_norm(x + jax_multi_head(p.attention, x, num_heads), *p.attention_norm)
    inner = jax.nn.relu(linear(p.feed_forward.inner, x))
    return jax_layer_norm(x + linear(p.feed_forward.outer, inner), *p.feed_forward_norm)


E, H, F, VOCABULARY = 16, 4, 32, 12


def random(*shape: int, mean: float = 0.0, spread: float = 0.3) -> np.ndarray:
    return generator.normal(mean, spread, shape).astype("float32")


def some_linear(inner: int, outer: int) -> structures.Linear:
    return structures.Linear(random(inner, outer), random(outer))


def some_attention() -> structures.MultiHeadAttention:
    query, key, value, output = (some_linear(E, E) for _ in range(4))
    return structures.MultiHeadAttention(query, key, value, output)


def some_norm() -> structures.Norm:
    return structures.Norm(random(E, mean=1), random(E))


def some_feed_forward() -> structures.FeedForward:
    return structures.FeedForward(some_linear(E, F), some_linear(F, E))


block = structures.EncoderBlock(some_attention(), some_norm(), some_feed_forward(), some_norm())
x, wide_block, configuration = random(2, 5, E, spread=1), widen_parameters(block), Configuration(num_heads=H)
exact, largest = carried_bound(
    lambda definition: definition.encoder_block(wide_block, x.astype(float), configuration=configuration),
    wide_block,
    "float32",
)


def judge(name: str, got: Any) -> None:
    finding = compare_within_bound(name, np.asarray(got), exact, largest, "float32")
    print(f"  {name}: off by {finding.ratio:.2g} carried bounds")
    assert finding.ratio <= 1, finding


judge("block in torch", torch_block(structures.mapped(torch.tensor, block), torch.tensor(x), num_heads=H))
compiled = jax.jit(jax_block, static_argnames="num_heads")
judge("block in jax", compiled(block, x, num_heads=H))

# %% [markdown]
# ## The whole, by the ports
#
# `torch_impl` and `jax_impl` are these pieces in full. Here an encoder-decoder runs in both, every step judged on the
# definition's own activations.

# %%
decoder_block = structures.DecoderBlock(
    some_attention(), some_norm(), some_attention(), some_norm(), some_feed_forward(), some_norm()
)
model = structures.Transformer(
    structures.Encoder(structures.Embedding(random(VOCABULARY, E, spread=1)), [block]),
    structures.Decoder(structures.Embedding(random(VOCABULARY, E, spread=1)), [decoder_block]),
    some_linear(E, VOCABULARY),
)
tokens = generator.integers(0, VOCABULARY, (2, 6)), generator.integers(0, VOCABULARY, (2, 4))
found = agreement(model, configuration, tokens, {"target_mask": Causal()}, ["torch_impl", "jax_impl"])
print(f"{'step':38} {'torch_impl':>10} {'jax_impl':>10}")
for step in found.steps:
    print(f"{step.name:38} {step.ratios['torch_impl']:10.2f} {step.ratios['jax_impl']:10.2f}")
assert found.first_beyond is None
print(f"{len(found.steps)} steps, none beyond its bound")
