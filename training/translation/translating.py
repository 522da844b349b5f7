"""A trained model at work: sentences into sentences, and what the decoder looks at while it translates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.models.inside import weights_within
from conformance.models.instrumentation import instrument_package
from conformance.models.structures import widen_parameters
from conformance.reports.models import draw_weights, unknown_format
from specification.configuration import Configuration
from specification.parameters import Transformer
from training.batches import padded
from training.checkpoints import Checkpoint
from training.packages import Package
from training.translation.vocabulary import END, PADDING, START, Vocabularies

if TYPE_CHECKING:
    from specification.parameters import ModelParameters

TOGETHER = 200
"""Sentences that are translated at once."""
LENGTH_PENALTY = 0.6
"""The paper's (section 6.1)."""


def translate(
    package: Package,
    parameters: ModelParameters,
    configuration: Configuration,
    vocabularies: Vocabularies,
    texts: Sequence[str],
    beams: int = 1,
) -> list[str]:
    """Translate sentences of the source; ValueError for one with an unknown word, or none.

    parameters: the package's arrays. beams: how many translations are searched at a time; 1 takes the most probable
    token each time.
    """
    encoded = [vocabularies.source.encode(text) for text in texts]
    length = max(map(len, encoded), default=0)
    found: list[str] = []
    for start in range(0, len(encoded), TOGETHER):
        source = padded(encoded[start : start + TOGETHER], length, PADDING)
        tokens = generated(package, parameters, configuration, source, vocabularies.longest, beams)
        found += [vocabularies.target.decode(row.tolist()) for row in tokens]
    return found


def from_checkpoint(package: Package, checkpoint: Checkpoint, texts: Sequence[str], beams: int = 1) -> list[str]:
    """Translate with a trained model, in float64, so that the packages agree."""
    parameters, configuration = widen_parameters(checkpoint.parameters), checkpoint.settings.task().configuration
    return translate(package, package.arrays(parameters), configuration, checkpoint.vocabulary, texts, beams)


def generated(
    package: Package,
    parameters: ModelParameters,
    configuration: Configuration,
    source: np.ndarray,
    steps: int,
    beams: int,
) -> np.ndarray:
    """Tokens [B, steps] behind the start, by the package's own `greedy` or `beam_search`."""
    prompt = np.full((len(source), 1), START)
    with package.context():
        prompt, source = package.arrays((prompt, source))
        options: dict[str, Any] = {"configuration": configuration, "source": source, "end": END}
        if beams == 1:
            tokens = package.numbers(package.module.greedy(parameters, prompt, steps, **options))
        else:
            options |= {"beams": beams, "length_penalty": LENGTH_PENALTY}
            tokens = package.numbers(package.module.beam_search(parameters, prompt, steps, **options))[0][:, 0]
    return np.asarray(tokens[:, 1:])


def cross_attention(
    parameters: Transformer, configuration: Configuration, source: np.ndarray, target: np.ndarray
) -> list[np.ndarray]:
    """Compute the weights [B, H, T, S] of the attention to the source in every decoder block, by the definition.

    source, target: tokens [B, S] and [B, T], the target as the decoder is given it.
    """
    exact, found = widen_parameters(parameters), []

    def visit(
        name: str, step: str, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        if name.endswith("cross_attention"):
            found.append(weights_within(arguments))
        return function(*arguments, **keywords)

    instrument_package("reference_numpy", exact, visit).transformer(exact, source, target, configuration=configuration)
    return found


def draw(checkpoint: Checkpoint, text: str, translation: str, path: Path) -> None:
    """Draw what `looked_at` returns; ValueError for a path with another ending than a picture's, or in no folder."""
    if (message := unknown_format(path)) is not None:
        raise ValueError(message)
    weights, read, written = looked_at(checkpoint, text, translation)
    draw_weights(weights, written, read, "cross-attention of the last block", path)


def looked_at(checkpoint: Checkpoint, text: str, translation: str) -> tuple[np.ndarray, list[str], list[str]]:
    """Return the weights [H, T, S] of the last decoder block's attention to the source, and the words of both axes."""
    source, target = checkpoint.vocabulary.source, checkpoint.vocabulary.target
    read, written = source.encode(text), target.encode(translation)
    weights = cross_attention(
        checkpoint.parameters,
        checkpoint.settings.task().configuration,
        np.array([read]),
        np.array([[START, *written[:-1]]]),
    )
    words = [
        [*(piece.strip(" ,-") for piece in one.pieces(numbers)), "end"]
        for one, numbers in ((source, read), (target, written))
    ]
    return weights[-1][0], words[0], words[1]
