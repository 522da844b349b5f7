# %% [markdown]
# # Bring your own kernel
#
# Fast attention never holds a row of scores as a whole. It walks over the keys in blocks and keeps, for every query, a
# running maximum, a running sum and a running output. Three lines in it are easily got wrong, and each of them gives
# numbers that look reasonable.
#
# Here such a kernel is written in PyTorch, judged, broken in three ways that happen to people, and mended. No tolerance
# is chosen anywhere: the judge derives, for every element, how far off honest arithmetic may be. An error of 1 *bound*
# is the most that conforms.
#
# Run it as a script (`python examples/bring_your_own_kernel.py`), or cell by cell in an editor that knows `# %%`.

# %%
import math
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import conformance
from reference_numpy import attention as definition
from specification import Causal
from specification.masks import Mask

torch.set_num_threads(1)
BLOCK, SEED = 16, 20260107
State = tuple[Tensor, Tensor, Tensor]  # of every query: the maximum, the sum and the output so far

# %% [markdown]
# ## The kernel, in three pieces and a loop
#
# **Which keys a query sees.** This kernel knows one mask, the causal one, and places it at the *bottom right*: the last
# query sees the last key. That is what decoding with a cache needs, where the queries are the newest of the keys.


# %%
def bottom_right(queries: Tensor, keys: Tensor, Q: int, K: int) -> Tensor:
    return keys <= queries + (K - Q)


# %% [markdown]
# **Taking in one more block.** When the maximum grows from `old` to `new`, everything summed so far was measured
# against the old one, so the sum *and* the output have to be multiplied by `exp(old - new)`. The result does not depend
# on the maximum, so its gradient is 0, and it is cut off by `detach`: else the rounding errors of a whole row would
# gather in the gradient of the key that holds the maximum.


# %%
def rescaled(state: State, scores: Tensor, value: Tensor, multiply: Callable[..., Tensor]) -> State:
    maximum, total, output = state
    larger = torch.maximum(maximum, scores.amax(dim=-1, keepdim=True)).detach()
    exponentials, factor = torch.exp(scores - larger), torch.exp(maximum - larger)
    total = total * factor + exponentials.sum(dim=-1, keepdim=True)
    return larger, total, output * factor + multiply(exponentials, value)


# %% [markdown]
# **Weights times values.** In the precision in which all else is computed: float32 for 16-bit inputs.


# %%
def multiply_values(exponentials: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    return exponentials @ value


# %% [markdown]
# **The loop.** `kernel` puts the pieces together, so that each can be exchanged for a broken one below. It begins with
# a maximum that is a very low but finite number, because `-inf - (-inf)` would be NaN for a query that sees nothing.


# %%
def kernel(
    visible: Callable[..., Tensor] = bottom_right,
    take_in: Callable[..., State] = rescaled,
    multiply: Callable[..., Tensor] = multiply_values,
) -> Callable[..., Tensor]:
    def attention(
        query: Tensor, key: Tensor, value: Tensor, *, mask: Mask | None = None, scale: float | None = None
    ) -> Tensor:
        if not (mask is None or (isinstance(mask, Causal) and mask.offset in (None, 0))):
            raise NotImplementedError("no mask but the causal one")
        (B, H, Q, D), (G, K) = query.shape, key.shape[1:3]
        dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
        # Widened before they are repeated: autograd adds up the heads' gradients in the dtype that was repeated.
        query = query.to(wide) * (1 / math.sqrt(D) if scale is None else scale)
        key, value = (array.to(wide).repeat_interleave(H // G, dim=1) for array in (key, value))
        rows, columns = torch.arange(Q)[:, None], torch.arange(K)
        maximum = query.new_full((B, H, Q, 1), torch.finfo(wide).min)
        state = (maximum, torch.zeros_like(maximum), query.new_zeros(B, H, Q, value.shape[-1]))
        for start in range(0, K, BLOCK):
            block = slice(start, start + BLOCK)
            scores = query @ key[:, :, block].transpose(-1, -2)
            if mask is not None:
                scores = scores.masked_fill(~visible(rows, columns[block], Q, K), -torch.inf)
            state = take_in(state, scores, value[:, :, block], partial(multiply, dtype=dtype))
        _, total, output = state
        nobody = total == 0  # not `total > 0`, which is False for NaN too, and would turn NaN into 0
        return torch.where(nobody, 0, output / torch.where(nobody, 1, total)).to(dtype)

    return attention


# %% [markdown]
# ## Saying what it is
#
# The judge asks only what a kernel claims. This one takes mask descriptions (`structured`), of which it knows
# `Causal()`; where that stands when there are more keys than queries is a convention, which is declared. NaN behind a
# mask is not promised to stay there (`isolation: finite`): a weight of 0 times NaN is NaN.

# %%
CLAIMS: dict[str, Any] = {
    "supports": ["structured", "causal", "no-offset", "scale", "gqa", "cross", "value_width", "gradients"],
    "conventions": {"causal": "bottom_right", "isolation": "finite"},
}


def judged(
    attention: Callable[..., Tensor], title: str, rules: list[str] | None = None, **claims: Any
) -> conformance.Report:
    claims = CLAIMS | {"arrays": "torch", "effort": "quick", "profile": "strict", "seed": SEED, "name": title} | claims
    claims |= {"rules": rules}
    report = conformance.check(attention, "attention", **claims)
    print(f"{title}: {'conforms' if report.conforms else 'violates'}, {report.cases} cases")
    for cause in report.causes:
        print(f"  {conformance.describe(cause)}\n  {conformance.describe(cause.lead)}")
    if report.following:
        print(f"  these follow: {', '.join(violation.rule for violation in report.following)}")
    return report


right = judged(kernel(), "the kernel")
assert right.conforms, right

# %% [markdown]
# The largest error of all cases, by rule, in bounds. In float32 and float64 an honest kernel stays far below 1; in
# 16 bits the one rounding at the end may come close to it.

# %%
for rule, cell in right.rules.items():
    print(f"{rule:8} {cell.cases:3} cases   worst {cell.worst:.2f}   in float32 and float64 {max(cell.wide, 0):.2f}")

# %% [markdown]
# ## First mistake: the output is not rescaled
#
# The sum is multiplied by `exp(old - new)`, the output is forgotten. With one block of keys nothing is wrong, so a test
# on short sequences passes.


# %%
def forgotten(state: State, scores: Tensor, value: Tensor, multiply: Callable[..., Tensor]) -> State:
    maximum, total, output = state
    larger = torch.maximum(maximum, scores.amax(dim=-1, keepdim=True)).detach()
    exponentials, factor = torch.exp(scores - larger), torch.exp(maximum - larger)
    total = total * factor + exponentials.sum(dim=-1, keepdim=True)
    return larger, total, output + multiply(exponentials, value)


generator = torch.Generator().manual_seed(0)


def differs(one: Callable[..., Tensor], other: Callable[..., Tensor], keys: int) -> float:
    query, key, value = (torch.randn(1, 1, length, 8, generator=generator) for length in (4, keys, keys))
    return float((one(query, key, value) - other(query, key, value)).abs().max())


for keys in (8, 16, 64):
    print(f"{keys:3} keys: differs from the right one by {differs(kernel(take_in=forgotten), kernel(), keys):.3g}")

# %% [markdown]
# The judge has cases with more than one block, says so, and names the mistake, because its answers are those of a
# known one. To be quick, it asks from here on for three rules only: softmax, causal masks, and dtypes.

# %%
FEW = ["ATT-5", "MASK-3", "ATT-9"]
first = judged(kernel(take_in=forgotten), "the output is not rescaled", FEW)
assert not first.conforms
[cause] = first.causes
assert conformance.describe(cause) == "the running output is not rescaled when the maximum grows (blocks of 16 keys)"

# %% [markdown]
# ## Second mistake: the causal mask at the top left
#
# `keys <= queries` is right as long as there are as many keys as queries, which is how most tests are written. With a
# cache of 5 keys and one new query it shows that query the first key only.


# %%
def top_left(queries: Tensor, keys: Tensor, Q: int, K: int) -> Tensor:
    return keys <= queries


for name, visible in (("bottom right", bottom_right), ("top left", top_left)):
    seen = visible(torch.arange(2)[:, None], torch.arange(5), 2, 5)
    print(f"{name}, 2 queries and 5 keys:", *("".join("x" if key else "." for key in row) for row in seen))

second = judged(kernel(visible=top_left), "the mask at the top left", FEW)
assert not second.conforms
assert "MASK-3" in [violation.rule for violation in second.violations]

# %% [markdown]
# Top left is no crime: SDPA's `is_causal` means it. It has to be *said*. Declared as the convention `top_left`, the
# very same kernel conforms.

# %%
declared = judged(
    kernel(visible=top_left), "declared as top_left", FEW, conventions={"causal": "top_left", "isolation": "finite"}
)
assert declared.conforms, declared

# %% [markdown]
# ## Third mistake: weights rounded to bfloat16
#
# Matrix units multiply 16-bit numbers, so kernels cast the weights down to the dtype of the values before the second
# product. The results are rounded to 16 bits anyway, are they not? They are, but a sum of rounded weights is off by
# more than one rounding of the sum. The profiles `core` and `robust` let that pass. This walk judges by `strict`, which
# does not.


# %%
def multiply_rounded_weights(exponentials: Tensor, value: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.bfloat16:
        exponentials = exponentials.to(dtype).to(exponentials.dtype)
    return exponentials @ value


third = judged(
    kernel(multiply=multiply_rounded_weights), "weights in bfloat16", ["ATT-5"], dtypes=["bfloat16"], shrink=False
)
assert not third.conforms
[cause] = third.causes
assert conformance.describe(cause).startswith("weights are rounded to the inputs' dtype before the division")

# %% [markdown]
# This mistake is told by its size, and a case that has been made as small as possible has little of it, so here the
# case is left as it was drawn (`shrink=False`). One tolerance for all elements does not see it at all: the largest
# error is that of the largest outputs, which one rounding to bfloat16 makes, and it is the same with the mistake and
# without. The judge asks of every element what *it* may be off by.

# %%
query, key, value = (torch.randn(2, 4, 32, 16, generator=generator).bfloat16() for _ in range(3))
exactly = definition(*(array.double().numpy() for array in (query, key, value)))
for name, multiply in (("the kernel", multiply_values), ("with rounded weights", multiply_rounded_weights)):
    error = abs(kernel(multiply=multiply)(query, key, value).double().numpy() - exactly).max()
    print(f"{name}: off by {error:.1e} at most, where outputs reach {abs(exactly).max():.2f}")

# %% [markdown]
# This too may be wanted. `weights: inputs` declares it, and the judge then allows that rounding and nothing more.

# %%
rounded = judged(
    kernel(multiply=multiply_rounded_weights),
    "declared as weights in the inputs' dtype",
    ["ATT-5"],
    dtypes=["bfloat16"],
    conventions=CLAIMS["conventions"] | {"weights": "inputs"},
)
assert rounded.conforms, rounded

# %% [markdown]
# ## Replaying a violation
#
# A violation is data: the smallest case that shows it, with all its numbers. Written to a file, it can be asked again,
# on another machine, of the broken kernel or of the mended one.

# %%
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "forgotten.json"
    conformance.save_replay(first.violations[0], file)
    print(f"replayed: {first.violations[0].case}")
    broken = max(finding.ratio for finding in conformance.replay(file, kernel(take_in=forgotten)))
    mended = max(finding.ratio for finding in conformance.replay(file, kernel()))
print(f"the broken kernel: {broken:.3g} bounds; the mended one: {mended:.3g} bounds")
assert broken > 1 >= mended

# %% [markdown]
# ## Yours
#
# Your own kernel needs only a function with these parameters, in a file:
#
#     conformance check my_kernels.py:attention --operation attention --arrays torch
#
# `examples/online_softmax.py` is one with a mistake left in for you to find; `docs/declarations.md` lists what can
# be claimed and declared.
