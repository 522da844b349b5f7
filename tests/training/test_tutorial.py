"""The run beside the tutorial's own loop: the same weights, batches and dropout, and so the same losses and parameters.

The tutorial's modules and loop are those of its text, in PyTorch, with float64 throughout. They are given the run's
initial weights, batches and keep masks, and go their own way from there. What differs on purpose is one number:
`clip_grad_norm_` divides by norm + 1e-6 where `clip_by_global_norm` divides by norm (OPT-3), so the run is given the
limit with which the two agree.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import training.review_data
import training.stepping
from specification.checkpoints import flatten
from specification.dialects import read as read_dialect
from specification.dropout import StackDropout
from tests.support.small_runs import SMALL, logged, write_reviews
from training import checkpoints, drawing, reviews
from training.batches import batch_of
from training.loop import Run, start
from training.packages import PACKAGES, Package
from training.review_data import ReviewData, prepare
from training.settings import TUTORIAL, Settings
from training.tutorial import CTransformer, optimizer_of, train

LARGEST = 1e-9
"""Of a difference, relative to the largest number of the tensor."""

# --- the tutorial's side ----------------------------------------------------------------------------------------------


class Given(torch.nn.Module):
    """Dropout whose keep masks were drawn before; the tutorial calls one module twice in every block."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.keeps = rate, iter(())

    def forward(self, x: Any) -> Any:
        return x * torch.from_numpy(next(self.keeps)) / (1 - self.rate) if self.training else x


def tutorial_model(settings: Settings, entries: int) -> CTransformer:
    """The tutorial's module, with initial weights of the run: those of a checkpoint of the dialect, the way back."""
    model = CTransformer(
        settings.width, settings.heads, settings.depth, settings.longest, entries, len(reviews.LABELS),
        max_pool=settings.pooling == "max", dropout=settings.dropout,
    ).double()  # fmt: skip
    give(model, drawing.initial_weights(settings, entries))
    for module in (model, *model.tblocks):
        module.do = Given(settings.dropout)
    return model


def taken(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Its parameters under our names, as those of a checkpoint of the dialect."""
    arrays = {name: array.detach().numpy() for name, array in model.named_parameters()}
    return flatten(read_dialect("imdb-classifier", arrays, num_heads=PLAIN.heads)[0])


def give(model: torch.nn.Module, weights: Any) -> None:
    """Each number goes where a checkpoint that counts has it."""
    arrays, numbers = flatten(weights), torch.arange(sum(array.numel() for array in model.parameters()))
    torch.nn.utils.vector_to_parameters(numbers.double(), model.parameters())
    counted, flat = taken(model), np.empty(len(numbers))
    assert counted.keys() == arrays.keys()
    for name, places in counted.items():
        flat[places.astype(int)] = arrays[name]
    torch.nn.utils.vector_to_parameters(torch.from_numpy(flat), model.parameters())


class Found(NamedTuple):
    """Losses of every step, all parameters after them, and log-probabilities of what is held out."""

    losses: list[float]
    parameters: dict[str, np.ndarray]
    held_out: np.ndarray


def theirs(settings: Settings, data: ReviewData, steps: int, draw: Callable[..., StackDropout | None]) -> Found:
    """Of the tutorial's loop."""
    model = tutorial_model(settings, data.vocabulary.get_vocab_size())
    texts, labels = data.training

    def batches() -> Any:
        lengths, step = np.array([len(text) for text in texts]), 0
        for epoch in range(settings.epochs):
            for chosen in drawing.order(lengths, settings.batch, settings.seed, epoch):
                if step == steps:
                    return
                batch = batch_of([texts[place] for place in chosen], labels[chosen], settings)
                sites = draw(settings, batch.inputs[0], step)
                if sites is not None:
                    model.do.keeps = iter([sites.embedding.keep])
                    for block, part in zip(model.tblocks, sites.blocks, strict=True):
                        block.do.keeps = iter([part.attention.norm.keep, part.feed_forward.norm.keep])
                yield torch.from_numpy(batch.inputs[0]), torch.from_numpy(batch.targets)
                step += 1

    losses = list(train(model, *optimizer_of(model, settings.learning_rate, settings.warmup), batches()))
    model.eval()
    rows = [np.empty((1, 2))] * len(data.held_out.texts)
    with torch.no_grad():
        for place, text in enumerate(data.held_out.texts):
            tokens = batch_of([text], [0], settings).inputs[0]
            # Masked, padding is as if it were not there.
            rows[place] = model(torch.from_numpy(tokens[:, : len(text)] if settings.masked else tokens)).numpy()
    return Found(losses, taken(model), np.concatenate(rows))


# --- our side ---------------------------------------------------------------------------------------------------------


class ClippedAsTheirs:
    """A package whose limit is so much smaller that limit / norm is PyTorch's limit / (norm + 1e-6)."""

    def __init__(self, package: Package) -> None:
        self.package = package

    def __getattr__(self, name: str) -> Any:
        return getattr(self.package, name)

    def clip(self, gradients: Any, limit: float) -> tuple[Any, Any]:
        norm = float(self.package.clip(gradients, limit)[1])
        return self.package.clip(gradients, limit * norm / (norm + 1e-6))


class Silent:
    """A display that shows nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


def run(package: str, settings: Settings, data: ReviewData, steps: int, folder: Path) -> Found:
    """The run itself, with its log and its checkpoint."""
    chosen: Any = ClippedAsTheirs(PACKAGES[package])
    going = Run(chosen, data, folder, start(data, settings, chosen))
    path = going.train(Silent(), steps)
    predictions = training.review_data.predictions
    rows = [predictions(chosen, settings, going.parameters, [text])[0] for text in data.held_out.texts]
    return Found(logged(folder, "loss"), flatten(checkpoints.read(path).parameters), np.array(rows))


def difference(one: Any, other: Any) -> float:
    one, other = np.asarray(one), np.asarray(other)
    return float(np.max(np.abs(one - other)) / np.max(np.abs(other)))


def differences(found: Found, expected: Found) -> dict[str, float]:
    """By name, those that are larger than they may be."""
    assert found.parameters.keys() == expected.parameters.keys()
    every = {"losses": difference(found.losses, expected.losses)}
    every |= {name: difference(array, expected.parameters[name]) for name, array in found.parameters.items()}
    every["held out"] = difference(found.held_out, expected.held_out)
    return {name: value for name, value in every.items() if not value <= LARGEST}


# --- both -------------------------------------------------------------------------------------------------------------

FEW = 7
PLAIN = replace(SMALL, dtype="float64", dropout=0.2, pooling="max", masked=False, spread=1.0, depth=2)
MASKED = replace(PLAIN, pooling="mean", masked=True)
"""On texts of one length, where nothing is padding in training; what is held out is padded."""


def same_length(split: reviews.Split) -> reviews.Split:
    """With texts of eight words to train on, so that no batch has padding."""
    texts = [" ".join((text.split() * 8)[:8]) for text in split.training.texts]
    return reviews.Split(reviews.Reviews(texts, split.training.labels), split.held_out)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> reviews.Split:
    return reviews.read(write_reviews(tmp_path_factory.mktemp("reviews"), texts=16))


def both(package: str, settings: Settings, split: reviews.Split, folder: Path) -> tuple[Found, Found]:
    data = prepare(same_length(split) if settings.masked else split, settings)
    expected = theirs(settings, data, FEW, DRAWN)
    return run(package, settings, data, FEW, folder), expected


DRAWN = drawing.dropout
"""As it is before a fault is planted."""


@pytest.mark.slow_where("jax_impl")
@pytest.mark.parametrize("settings", [PLAIN, MASKED], ids=["as in the tutorial", "masked"])
@pytest.mark.parametrize("package", PACKAGES)
def test_the_run_is_the_tutorials(package: str, settings: Settings, split: reviews.Split, tmp_path: Path) -> None:
    found, expected = both(package, settings, split, tmp_path)
    assert len(found.losses) == FEW
    assert not differences(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_fifty_steps_of_the_tutorials_size(package: str, tmp_path: Path) -> None:
    settings = replace(TUTORIAL, dtype="float64")
    split = reviews.movie_sentences()
    few = reviews.Split(split.training, reviews.Reviews(split.held_out.texts[:20], split.held_out.labels[:20]))
    data = prepare(few, settings)
    assert not differences(run(package, settings, data, 50, tmp_path), theirs(settings, data, 50, DRAWN))


def test_the_weights_given_to_the_tutorial_are_those_of_its_dialect() -> None:
    model = tutorial_model(PLAIN, 12)
    arrays = {name: array.detach().numpy() for name, array in model.named_parameters()}
    parameters, configuration = read_dialect("imdb-classifier", arrays, num_heads=PLAIN.heads)
    assert configuration == PLAIN.task().configuration
    np.testing.assert_equal(flatten(parameters), flatten(drawing.initial_weights(PLAIN, 12)))


# --- faults planted in the run ----------------------------------------------------------------------------------------


def stale_dropout(patch: pytest.MonkeyPatch) -> None:
    """The keep masks of the first step that had this shape."""
    kept: dict[Any, Any] = {}

    def stale(settings: Settings, tokens: np.ndarray, step: int) -> Any:
        return kept.setdefault(tokens.shape, DRAWN(settings, tokens, step))

    patch.setattr(drawing, "dropout", stale)


def dropout_in_evaluation(patch: pytest.MonkeyPatch) -> None:
    def predict(self: Package, task: Any, parameters: Any, batch: Any) -> Any:
        sites = DRAWN(PLAIN, batch.inputs[0], 0)
        return self.output(task, parameters, batch, sites)

    patch.setattr(type(PACKAGES["reference_numpy"]), "predict", predict)


def clipped_after_the_step(patch: pytest.MonkeyPatch) -> None:
    """The step takes the gradients as they were."""
    clip = ClippedAsTheirs.clip
    patch.setattr(ClippedAsTheirs, "clip", lambda self, gradients, limit: (gradients, clip(self, gradients, limit)[1]))


def warmup_from_one(patch: pytest.MonkeyPatch) -> None:
    rate = Settings.rate
    patch.setattr(Settings, "rate", lambda self, package, step: rate(self, package, step + 1))


def gradients_add_up(patch: pytest.MonkeyPatch) -> None:
    """As where `zero_grad` is forgotten."""
    from specification.parameters import mapped

    package, before = type(PACKAGES["reference_numpy"]), []
    step = package.step

    def adding(self: Package, *arguments: Any) -> Any:
        found = step(self, *arguments)  # type: ignore[arg-type]
        gradients = mapped(np.add, found.gradients, before[-1]) if before else found.gradients
        before.append(gradients)
        return found._replace(gradients=gradients)

    patch.setattr(package, "step", adding)


def averaged_over_padding(patch: pytest.MonkeyPatch) -> None:
    def made(*arguments: Any) -> Any:
        return batch_of(*arguments)._replace(options={})

    patch.setattr(training.review_data, "batch_of", made)


FAULTS = {
    stale_dropout: PLAIN,
    dropout_in_evaluation: PLAIN,
    clipped_after_the_step: PLAIN,
    warmup_from_one: PLAIN,
    gradients_add_up: PLAIN,
    averaged_over_padding: MASKED,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_planted_in_the_run_are_noticed(
    fault: Callable[[pytest.MonkeyPatch], None], split: reviews.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    found, expected = both("reference_numpy", FAULTS[fault], split, tmp_path)
    where = differences(found, expected)
    only_there = fault in (dropout_in_evaluation, averaged_over_padding)
    assert where.keys() == {"held out"} if only_there else "losses" in where
