# %% [markdown]
# # One step of training
#
# What happens between two weights: a loss, its gradient, a limit on the gradient's size, and Adam. Each piece is
# written here as one writes it in PyTorch, and the judge says whether it is what the rules say. At the end a model is
# trained in all three packages. Errors are in *bounds*: 1 is the most that honest arithmetic may be off by.

# %%
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import conformance
from reference_numpy import adam_step, cross_entropy, cross_entropy_vjp
from specification.optimizers import AdamState
from training import drawing, review_data, reviews
from training.packages import PACKAGES
from training.settings import Settings
from training.stepping import advance

torch.set_num_threads(1)
PROFILE = "core"
GIVEN: dict[str, Any] = {"effort": "quick", "seed": 20260107, "dtypes": ["float32"], "arrays": "torch"}


def check(function: Callable[..., Any], operation: str, right: bool = True) -> None:
    """What the judge finds: whether the function conforms, and what is behind its violations."""
    report = conformance.check(function, operation, profile=PROFILE, **GIVEN)
    verdict = f"conforms, worst {report.worst:.2f} bounds" if report.conforms else "violates"
    print(f"  {report.subject}: {verdict}, {report.cases} cases")
    for cause in report.causes:
        # Core is the lowest level: what has another one is beyond what is asked here.
        beyond = "" if cause.level == PROFILE else f" ({cause.level}, not asked by the profile {PROFILE})"
        finding = conformance.describe(cause.lead.finding)
        print(f"    {cause.lead.rule}{beyond}: {conformance.describe(cause)}; {finding}")
    assert report.conforms is right, f"{report.subject} {verdict}"


# %% [markdown]
# ## A loss is one number
#
# Three words to choose from, two texts, and the right answer for each. The loss is the mean of -log(probability of the
# right word), where the probabilities are the softmax of the logits (LOSS-1). Its gradient is the probabilities less
# the truth, divided by the number of texts.

# %%
logits, targets = np.array([[2.0, 1.0, 0.0], [0.0, 0.0, 3.0]]), np.array([0, 1])
print("loss:", cross_entropy(logits, targets))
print("gradient:\n", cross_entropy_vjp(logits, targets, np.array(1.0)))

# %% [markdown]
# A batch has texts of several lengths, and the shorter ones are filled up. What fills them up is no target: it is
# ignored, and the mean is taken over the targets that count. PyTorch agrees, until nothing counts: a mean over nothing
# is NaN there. The judge tells it and, asked for the profile `core` as here, does not count it. The second function
# divides by all targets, as many do.


# %%
def cross_entropy_of_torch(
    logits: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    V = logits.shape[-1]
    ignored = -100 if ignore is None else ignore
    losses = F.cross_entropy(
        logits.reshape(-1, V), targets.reshape(-1).long(),
        label_smoothing=label_smoothing, ignore_index=ignored, reduction=reduction,
    )  # fmt: skip
    return losses.reshape(targets.shape) if reduction == "none" else losses


def average_all_targets(
    logits: Tensor,
    targets: Tensor,
    *,
    label_smoothing: float = 0.0,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    total = cross_entropy_of_torch(logits, targets, label_smoothing=label_smoothing, ignore=ignore, reduction="sum")
    if reduction == "none":
        return cross_entropy_of_torch(logits, targets, label_smoothing=label_smoothing, ignore=ignore, reduction="none")
    return total / max(targets.numel(), 1) if reduction == "mean" else total


print("cross-entropy")
check(cross_entropy_of_torch, "cross_entropy")
check(average_all_targets, "cross_entropy", right=False)

# %% [markdown]
# ## Adam divides a gradient by its own size
#
# It keeps two averages that begin at 0: of the gradient, and of its square. In the first step they are far too small,
# by factors that are known and divided out. So the first step moves every weight by about the learning rate, whatever
# the size of its gradient (OPT-1).

# %%
weights, gradients = np.array([1.0, 1.0, 1.0]), np.array([100.0, 1.0, -0.01])
moved, state = adam_step(weights, gradients, AdamState(0, 0 * weights, 0 * weights), learning_rate=0.1)
print("weights:", moved)

# %% [markdown]
# Adam is written in a few lines, and there are many ways to go wrong that no shape shows. Here the small number that
# keeps the quotient finite stands inside the root.


# %%
def adam(
    parameters: Tensor, gradients: Tensor, state: AdamState, *, learning_rate: float, beta_1: float = 0.9,
    beta_2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0, decoupled: bool = True, inside: bool = False,
) -> tuple[Tensor, AdamState]:  # fmt: skip
    gradient = gradients if decoupled else gradients + weight_decay * parameters
    step = state.step + 1
    mean = beta_1 * state.mean + (1 - beta_1) * gradient
    square = beta_2 * state.square + (1 - beta_2) * gradient**2
    size = square / (1 - beta_2**step)
    size = torch.sqrt(size + eps**2) if inside else torch.sqrt(size) + eps
    kept = 1 - learning_rate * weight_decay if decoupled else 1
    moved = kept * parameters - learning_rate * mean / (1 - beta_1**step) / size
    return moved, AdamState(step, mean, square)


def eps_inside_the_root(*given: Any, **options: Any) -> tuple[Tensor, AdamState]:
    return adam(*given, **options, inside=True)


print("Adam")
check(adam, "adam_step")
check(eps_inside_the_root, "adam_step", right=False)

# %% [markdown]
# ## The same step three times
#
# A classifier of film reviews. Weights, batches and what dropout keeps are drawn once, with NumPy, and given to all
# three packages. Their losses are the same to the last digits, step by step.

# %%
settings = Settings(width=16, heads=2, batch=8, vocabulary=2000, dtype="float64", warmup=5)
split = reviews.read(None)
data = review_data.prepare(split, settings)
batches = [data.batch(places) for places in data.order(0)[:10]]
losses: dict[str, list[float]] = {}
for name, package in PACKAGES.items():
    parameters = package.arrays(drawing.initial_weights(settings, data.vocabulary.get_vocab_size()))
    state, losses[name] = package.adam_start(parameters), []
    for step, batch in enumerate(batches):
        taken = advance(package, settings, parameters, state, batch, data.dropout(batch, step), step)
        parameters, state = taken.parameters, taken.state
        losses[name].append(taken.loss)
for step, each in enumerate(zip(*losses.values(), strict=True)):
    print(f"step {step}: loss {each[0]:.6f}, apart by {max(each) - min(each):.0e}")
apart = max(max(each) - min(each) for each in zip(*losses.values(), strict=True))
assert apart < 1e-12, f"the packages are {apart} apart"

# %% [markdown]
# `python -m training lockstep` does this for every tensor of every step, and compares each with the exact step within
# derived bounds. `python -m training reviews` trains the whole model; see docs/training.md.
