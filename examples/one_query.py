# %% [markdown]
# # From one query and one key to a Transformer
#
# A Transformer in NumPy, written piece by piece, each piece judged as soon as it stands. The judge works out exactly
# what should have come and how far off honest float32 arithmetic may be, for every number; that much is 1 *bound*. So
# there is no tolerance anywhere below, and an error of more than 1 is a mistake. Those below are made on purpose.
#
# Names of axes: B sequences in a batch, H heads, T positions of a sequence, Q queries, K keys, D the width of a head,
# E the width of the model, F the inner width of its feed-forward network.
#
# ## One query, one key
#
# A query asks, a key answers how well it fits. The score is their dot product, divided by the root of their width so
# that it stays of the same size however wide they are.

# %%
import numpy as np

generator = np.random.default_rng(0)


def random(*shape: int, spread: float = 1.0) -> np.ndarray:
    return generator.normal(0, spread, shape).astype("float32")


D = 4
query, key = random(D), random(D)
score = query @ key / np.float32(np.sqrt(D))
print(f"score {score:.4f}")

# %% How one result is judged
from typing import Any

import conformance


def judge(operation: str, got: np.ndarray, **inputs: Any) -> None:
    """One result of one operation on these inputs, held to its bounds."""
    result = conformance.compare(operation, got, **inputs)
    print(f"  {operation}: off by {result.error_ratio:.2g} bounds")
    assert result.conforms, result


# %% [markdown]
# With one key, the log of the sum of exp(scores) is the score: that is how it can be judged by itself.

# %%
judge("attention_logsumexp", score.reshape(1, 1, 1), query=query.reshape(1, 1, 1, D), key=key.reshape(1, 1, 1, D))

# %% [markdown]
# ## One query, three keys: softmax
#
# Scores become weights that are positive and add up to 1. exp overflows early in float32, so the largest score is taken
# off first, which leaves the quotient as it is.

# %%
query, key, value = random(D), random(3, D), random(3, 2)
scores = key @ query / np.float32(np.sqrt(D))


def softmax(scores: np.ndarray) -> np.ndarray:
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


weights = softmax(scores)
print("scores ", scores.round(3), "\nweights", weights.round(3), "sum", weights.sum())
judge("attention_weights", weights.reshape(1, 1, 1, 3), query=query.reshape(1, 1, 1, D), key=key.reshape(1, 1, 3, D))

with np.errstate(all="ignore"):
    literal = np.exp(100 * scores) / np.exp(100 * scores).sum()
print("a hundred times the scores: literally", literal, "and with the maximum taken off", softmax(100 * scores))
assert np.isnan(literal).any()

# %% [markdown]
# The output is the mean of the values by these weights.

# %%
output = weights @ value
print("output", output.round(3), "between the values", *value.round(3))
judge(
    "attention",
    output.reshape(1, 1, 1, 2),
    query=query.reshape(1, 1, 1, D),
    key=key.reshape(1, 1, 3, D),
    value=value.reshape(1, 1, 3, 2),
)

# %% [markdown]
# ## Many queries, and who may attend to whom
#
# The same with arrays of four axes, [B, H, T, D]. A mask is a boolean array here: True where the query may attend to
# the key. In text that is written from left to right, a position sees itself and what came before.

# %%
import reference_numpy
from specification import Causal

causal = reference_numpy.materialize(Causal(), 4, 4)
for row in causal[0, 0]:
    print("  ", "".join("x" if seen else "." for seen in row))

# %% [markdown]
# How a forbidden pair is left out matters. The usual way sets its score to -1e9. A row that may attend to nothing then
# gets the mean of all values, and NaN behind the mask comes through, because 0 * NaN is NaN.

# %%
from collections.abc import Callable

SEED = 20260107


def usual(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: np.ndarray | None = None, scale: float | None = None
) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # the judge also tries infinities: inf - inf, and 0 * inf
        scores = query @ key.swapaxes(-1, -2) * np.float32(query.shape[-1] ** -0.5 if scale is None else scale)
        if mask is not None:
            scores = np.where(mask, scores, np.float32(-1e9))
        return softmax(scores) @ value


def check(
    function: Callable[..., np.ndarray], operation: str, rules: list[str], supports: list[str] | None = None
) -> conformance.Report:
    """The judge draws the cases itself, and makes a failing one as small as it can."""
    report = conformance.check(
        function,
        operation,
        rules=rules,
        supports=supports,
        dtypes=["float32"],
        effort="quick",
        profile="strict",
        seed=SEED,
    )
    verdict = f"conforms, worst {report.worst:.2f} bounds" if report.conforms else "violates"
    print(f"  {report.subject} as {operation}: {verdict}, {report.cases} cases")
    for violation in report.violations:
        print(f"    {violation.rule}: {conformance.describe(violation.finding)}")
    return report


MASKED = ["causal", "window", "lengths", "padding", "segments", "dense", "offset", "scale", "cross"]
report = check(usual, "attention", ["MASK-7", "ATT-6"], MASKED)
assert {violation.rule for violation in report.violations} == {"MASK-7", "ATT-6"}

# %% [markdown]
# The definition takes the sum over the allowed keys and over no others. So a row without any is an empty sum, 0, and
# what stands behind a mask is never touched. NaN that *is* attended to has to show.


# %%
def masked_softmax(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    maximum = np.max(scores, axis=-1, where=allowed, initial=-np.inf, keepdims=True)
    maximum = np.where(maximum == -np.inf, 0, maximum)  # a row that may attend to nothing
    exponentials = np.exp(np.where(allowed, scores - maximum, -np.inf))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: np.ndarray | None = None, scale: float | None = None
) -> np.ndarray:
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    allowed = np.ones(1, bool) if mask is None else mask
    with np.errstate(all="ignore"):
        scores = np.where(allowed, query @ key.swapaxes(-1, -2), 0) * np.float32(scale)
        allowed = np.broadcast_to(allowed, scores.shape)
        weights = masked_softmax(scores, allowed)
        finite = np.isfinite(value)
        output = weights @ np.where(finite, value, 0)
        reached = allowed.astype("float32") @ (~finite).astype("float32") > 0
        return np.where(reached, np.float32(np.nan), output)


report = check(attention, "attention", ["MASK-1", "MASK-3", "MASK-7", "ATT-1", "ATT-5", "ATT-6", "ATT-10"], MASKED)
assert report.conforms, report

# %% [markdown]
# Four words that attend to themselves and to what came before: every row of the weights adds up to 1, and above the
# diagonal there is nothing.

# %%
words = random(1, 1, 4, D)
weights = masked_softmax(words @ words.swapaxes(-1, -2) / np.float32(np.sqrt(D)), causal)
print("sums of the rows", weights.sum(axis=-1).round(3))

# %% [markdown]
# ## Heads
#
# One projection each makes queries, keys and values out of the model's stream, H heads side by side in its columns;
# every head attends by itself, and a last projection mixes what they found. Parameters are named tuples of arrays.

# %%
from specification import parameters as structures


def linear(parameters: structures.Linear, x: np.ndarray) -> np.ndarray:
    return x @ parameters.weight + (0 if parameters.bias is None else parameters.bias)


def side_by_side(heads: structures.Linear | list[structures.Linear]) -> structures.Linear:
    """One projection; where every head comes with its own, as some tutorials have it, their columns in order."""
    if isinstance(heads, structures.Linear):
        return heads
    biases = [head.bias for head in heads]
    weight = np.concatenate([head.weight for head in heads], axis=1)
    return structures.Linear(weight, None if biases[0] is None else np.concatenate(biases))


def split(x: np.ndarray, num_heads: int) -> np.ndarray:
    B, T, width = x.shape
    return x.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)


def joined(x: np.ndarray) -> np.ndarray:
    B, H, T, width = x.shape
    return x.swapaxes(1, 2).reshape(B, T, H * width)


def multi_head_attention(
    parameters: structures.MultiHeadAttention,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    num_heads: int,
    mask: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    query, key, value = (
        split(linear(side_by_side(part), x), num_heads)
        for part, x in ((parameters.query, query), (parameters.key, key), (parameters.value, value))
    )
    return linear(parameters.output, joined(attention(query, key, value, mask=mask, scale=scale)))


report = check(multi_head_attention, "multi_head_attention", ["MHA-1", "MHA-2"], MASKED)
assert report.conforms, report

# %% [markdown]
# Two positions of width 4, numbered to see where they go: each of two heads gets one half of the columns.

# %%
x = np.arange(8).reshape(1, 2, 4)
heads = split(x, 2)
assert np.array_equal(joined(heads), x)

# %% [markdown]
# ## Layer norm
#
# Every position for itself: mean off, divided by the deviation, then stretched and shifted by what was learned. The
# formula is short, and written down as it stands it is not quite right: in a row of equal numbers the mean that comes
# out need not be that number, and what is left of rounding is then divided by something small. (The norm runs over as
# many trailing axes as the weight has.)


# %%
def literal_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, eps: float = 1e-5) -> np.ndarray:
    axes = tuple(range(-weight.ndim, 0))
    deviation = x - x.mean(axis=axes, keepdims=True)
    variance = (deviation**2).mean(axis=axes, keepdims=True)
    normalized = deviation / np.sqrt(variance + np.float32(eps)) * weight
    return normalized if bias is None else normalized + bias


report = check(literal_norm, "layer_norm", ["NORM-1", "NORM-3", "NORM-4"])
assert "NORM-3" in [violation.rule for violation in report.violations]


# %% [markdown]
# Measured from the row's first element, equal numbers give exactly 0. A second subtraction takes off what the first
# mean was off by.


# %%
def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, *, eps: float = 1e-5) -> np.ndarray:
    axes = tuple(range(-weight.ndim, 0))
    corner: tuple[Any, ...] = (..., *(slice(0, 1) for _ in axes))
    first = x[corner]
    deviation = x - (first + (x - first).mean(axis=axes, keepdims=True))
    deviation = deviation - deviation.mean(axis=axes, keepdims=True)
    variance = (deviation**2).mean(axis=axes, keepdims=True)
    normalized = deviation / np.sqrt(variance + np.float32(eps)) * weight
    return normalized if bias is None else normalized + bias


report = check(layer_norm, "layer_norm", ["NORM-1", "NORM-3", "NORM-4"])
assert report.conforms, report

# %% [markdown]
# A row of equal numbers, and one that rises, by both.

# %%
rows = np.array([[0.1] * 7, range(7)], "float32")
by_the_formula = literal_norm(rows, np.ones(7, "float32"), None)
from_the_first = layer_norm(rows, np.ones(7, "float32"), None)
assert by_the_formula[0].any()
assert not from_the_first[0].any()


# %% [markdown]
# ## Feed-forward, and positions
#
# Two projections with max(x, 0) between them, for every position on its own. And since attention does not know what
# comes first, every position gets a pattern of sines and cosines of its own.


# %%
def feed_forward(parameters: structures.FeedForward, x: np.ndarray) -> np.ndarray:
    return linear(parameters.outer, np.maximum(linear(parameters.inner, x), 0))


def positions(length: int, width: int) -> np.ndarray:
    angle = np.arange(length)[:, None] / 10000 ** (2 * (np.arange(width) // 2) / width)
    return np.where(np.arange(width) % 2 == 0, np.sin(angle), np.cos(angle)).astype("float32")


inner, outer = (structures.Linear(random(n, m), random(m)) for n, m in ((4, 6), (6, 4)))
x = random(3, 4)
hidden = np.maximum(linear(inner, x), 0)
parameters = structures.FeedForward(inner, outer)
judge("feed_forward", feed_forward(parameters, x), parameters=parameters, x=x, activation="relu")
pattern = positions(6, 8)
judge("sinusoidal_positions", pattern, length=6, width=8, dtype="float32")

# %% [markdown]
# ## A block, and parameters for it
#
# What a sublayer finds is added to the stream, and the sum is normed. A decoder's block has one more attention, to what
# the encoder gave (`memory`), between the other two.

# %%
from specification import Configuration

E, H, F, VOCABULARY = 16, 4, 32, 12
configuration = Configuration(num_heads=H, target_mask="causal")


def some_linear(inner: int, outer: int) -> structures.Linear:
    return structures.Linear(random(inner, outer, spread=inner**-0.5), random(outer, spread=0.1))


def some_attention() -> structures.MultiHeadAttention:
    query, key, value, output = (some_linear(E, E) for _ in range(4))
    return structures.MultiHeadAttention(query, key, value, output)


def some_norm() -> structures.Norm:
    return structures.Norm(1 + random(E, spread=0.1), random(E, spread=0.1))


def some_feed_forward() -> structures.FeedForward:
    return structures.FeedForward(some_linear(E, F), some_linear(F, E))


def some_decoder_block() -> structures.DecoderBlock:
    own = (some_attention(), some_norm(), some_attention(), some_norm())
    return structures.DecoderBlock(*own, some_feed_forward(), some_norm())


def add_and_norm(x: np.ndarray, found: np.ndarray, norm: structures.Norm | None) -> np.ndarray:
    assert norm is not None
    return layer_norm(x + found, norm.weight, norm.bias)


def encoder_block(p: structures.EncoderBlock, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    assert isinstance(p.feed_forward, structures.FeedForward)
    x = add_and_norm(x, multi_head_attention(p.attention, x, x, x, num_heads=H, mask=mask), p.attention_norm)
    return add_and_norm(x, feed_forward(p.feed_forward, x), p.feed_forward_norm)


def decoder_block(p: structures.DecoderBlock, x: np.ndarray, memory: np.ndarray, mask: np.ndarray) -> np.ndarray:
    assert isinstance(p.self_attention, structures.MultiHeadAttention)
    assert isinstance(p.feed_forward, structures.FeedForward)
    assert p.cross_attention is not None
    own = multi_head_attention(p.self_attention, x, x, x, num_heads=H, mask=mask)
    x = add_and_norm(x, own, p.self_attention_norm)
    found = multi_head_attention(p.cross_attention, x, memory, memory, num_heads=H)
    x = add_and_norm(x, found, p.cross_attention_norm)
    return add_and_norm(x, feed_forward(p.feed_forward, x), p.feed_forward_norm)


# %% [markdown]
# A block is many steps one after another. The judge bounds each of them, and carries the bounds to the end by the
# definition's own derivative.

# %% How several steps are judged
from conformance.models.error_propagation import Run, carried_bound, compare_within_bound
from conformance.models.structures import widen_parameters


def carried(name: str, got: np.ndarray, parameters: Any, run: Run) -> None:
    """What several steps come to; `run` has the definition do the same with its functions."""
    exact, largest = carried_bound(run, parameters, "float32")
    finding = compare_within_bound(name, got, exact, largest, "float32")
    print(f"  {name}: off by {finding.ratio:.2g} carried bounds")
    assert finding.ratio <= 1, finding


# %%
block, x = structures.EncoderBlock(some_attention(), some_norm(), some_feed_forward(), some_norm()), random(2, 5, E)
wide = widen_parameters(block)
carried(
    "encoder block",
    encoder_block(block, x),
    wide,
    lambda definition: definition.encoder_block(wide, x.astype(float), configuration=configuration),
)

# %% [markdown]
# ## The whole
#
# Tokens become rows of a table, plus positions; blocks follow, and at the end a projection to a number for every word.


# %%
def embed(table: structures.Embedding | structures.ImageEmbedding | None, tokens: np.ndarray) -> np.ndarray:
    assert isinstance(table, structures.Embedding)
    return table.tokens[tokens] + positions(tokens.shape[1], E)


def encoder(parameters: structures.Encoder, tokens: np.ndarray) -> np.ndarray:
    x = embed(parameters.embedding, tokens)
    for block in parameters.blocks:
        x = encoder_block(block, x)
    return x


def decoder(parameters: structures.Decoder, tokens: np.ndarray, memory: np.ndarray) -> np.ndarray:
    x, causal = embed(parameters.embedding, tokens), np.tri(tokens.shape[1], dtype=bool)
    for block in parameters.blocks:
        x = decoder_block(block, x, memory, causal)
    return x


def transformer(parameters: structures.Transformer, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    assert parameters.output is not None
    return linear(parameters.output, decoder(parameters.decoder, target, encoder(parameters.encoder, source)))


def some_embedding() -> structures.Embedding:
    return structures.Embedding(random(VOCABULARY, E))


def some_encoder_block() -> structures.EncoderBlock:
    return structures.EncoderBlock(some_attention(), some_norm(), some_feed_forward(), some_norm())


model = structures.Transformer(
    structures.Encoder(some_embedding(), [some_encoder_block() for _ in range(2)]),
    structures.Decoder(some_embedding(), [some_decoder_block() for _ in range(2)]),
    some_linear(E, VOCABULARY),
)
source, target = generator.integers(0, VOCABULARY, (2, 6)), generator.integers(0, VOCABULARY, (2, 4))
wide_model = widen_parameters(model)
carried(
    "Transformer",
    transformer(model, source, target),
    wide_model,
    lambda definition: definition.transformer(wide_model, source, target, configuration=configuration),
)

# %% [markdown]
# ## Generating
#
# The word with the largest number is taken, put at the end, and the model is asked again. Because the mask is causal,
# what was computed for earlier positions stays true, which is why a cache of keys and values gives the same words.


# %%
def greedy(parameters: structures.Transformer, source: np.ndarray, tokens: np.ndarray, steps: int) -> np.ndarray:
    for _ in range(steps):
        chosen = transformer(parameters, source, tokens)[:, -1].argmax(axis=-1)
        tokens = np.concatenate([tokens, chosen[:, None]], axis=1)
    return tokens


generated = greedy(model, source, target[:, :1], 6)
print("generated", generated.tolist())
for cached in (False, True):
    expected = reference_numpy.greedy(
        model, target[:, :1], 6, configuration=configuration, source=source, cached=cached
    )
    print(f"the definition, {'with' if cached else 'without'} a cache:", np.array_equal(generated, expected))
    assert np.array_equal(generated, expected)

# %% [markdown]
# That is a Transformer. The definition in `reference_numpy` is the same in more generality: biases, softcaps and sinks
# in the scores, fewer key heads than query heads, 16-bit inputs, dropout, and a gradient by hand for each of them.
