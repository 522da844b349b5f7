"""Reviews, vocabulary, batches, and what is drawn: weights, order, keep masks."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specification.checkpoints import flatten
from specification.parameters import leaves
from tests.support.small_runs import SMALL, write_reviews
from training import batches, drawing, naive_bayes, reviews, vocabulary
from training.vocabulary import PADDING, UNKNOWN


def test_the_movie_sentences_are_split_by_their_hash() -> None:
    training, held_out = reviews.movie_sentences()
    assert (len(training.texts), len(held_out.texts)) == (9527, 1078)
    assert not set(training.texts) & set(held_out.texts)
    for texts, divides in ((training.texts[:50], False), (held_out.texts[:50], True)):
        numbers = [int(hashlib.sha256(text.encode()).hexdigest()[:16], 16) for text in texts]
        assert [number % 10 == 0 for number in numbers] == [divides] * 50
    labels = dict(zip(training.texts + held_out.texts, training.labels + held_out.labels, strict=True))
    assert labels["Fantastic!"] == 1
    assert labels["Execrable."] == 0
    assert labels["Effective but too tepid biopic"] == 0  # rated -0.6


def test_a_folder_like_aclimdb(tmp_path: Path) -> None:
    folder = write_reviews(tmp_path, texts=3)
    (folder / "train" / "unsup").mkdir()
    split = reviews.read(folder)
    assert split.training.labels == [0, 0, 0, 1, 1, 1]
    assert split.training.texts[0] == (folder / "train" / "neg" / "0_7.txt").read_text()
    assert split.held_out.texts[-1] == (folder / "test" / "pos" / "2_7.txt").read_text()


def test_the_vocabulary_has_the_most_frequent_words_in_lower_case() -> None:
    texts = ["The film the FILM the plot", "a plot, a joke"]
    tokenizer = vocabulary.build(texts, 6, longest=4)
    # Of words that are as frequent the first by the alphabet.
    assert tokenizer.get_vocab() == {"<unk>": 0, "<pad>": 1, "the": 2, "a": 3, "film": 4, "joke": 5}
    first, second = vocabulary.encode(tokenizer, ["THE  plot\tof film", "a b c d film"])
    assert first.tolist() == [2, UNKNOWN, UNKNOWN, 4]
    assert second.tolist() == [3, UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_vocabulary_is_read_back_as_it_was(tmp_path: Path) -> None:
    tokenizer = vocabulary.build(["a b c", "b c", "c"], 10, longest=2)
    (tmp_path / "v.json").write_text(tokenizer.to_str())
    assert [one.tolist() for one in vocabulary.encode(vocabulary.read(tmp_path / "v.json"), ["c a b", "x"])] == [
        [2, 4],
        [0],
    ]


def test_batches_hold_every_text_once_and_texts_of_similar_lengths_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 1003)
    dealt = drawing.order(lengths, 8, seed=3, epoch=1)
    assert sorted(np.concatenate(dealt)) == list(range(1003))
    assert sorted({len(places) for places in dealt}) == [3, 8]
    assert np.mean([np.ptp(lengths[places]) for places in dealt]) < 3
    firsts = [drawing.order(lengths, 8, seed, epoch)[0].tolist() for seed, epoch in ((3, 1), (3, 1), (3, 2), (4, 1))]
    assert firsts[0] == firsts[1] == dealt[0].tolist()
    assert len({tuple(first) for first in firsts}) == 3


def test_lengths_take_few_values() -> None:
    found = [batches.rounded_up(length, 250) for length in range(1, 251)]
    assert all(length <= enough <= 250 for length, enough in enumerate(found, start=1))
    assert set(found) == {8, 16, 24, 32, 48, 64, 96, 128, 192, 250}


@pytest.mark.parametrize("masked", [True, False])
def test_a_batch_is_padded_and_says_what_is_not_padding(masked: bool) -> None:
    texts = [np.array([5, 0, 6]), np.array([7])]
    batch = batches.batch_of(texts, [1, 0], replace(SMALL, masked=masked))
    (tokens,) = batch.inputs
    assert tokens.tolist() == [[5, 0, 6, *[PADDING] * 5], [7, *[PADDING] * 7]]
    assert batch.targets.tolist() == [1, 0]
    assert {name: array.sum(1).tolist() for name, array in batch.options.items()} == (
        {"keep": [3, 1]} if masked else {}
    )


def test_weights_are_those_of_the_seed_and_look_like_pytorchs() -> None:
    settings = replace(SMALL, width=64, spread=1.0)
    weights, again = (drawing.initial_weights(settings, 500) for _ in range(2))
    for name, array in leaves(weights).items():
        np.testing.assert_array_equal(leaves(again)[name], array)
    assert drawing.initial_weights(replace(settings, seed=1), 500).output.weight[0, 0] != weights.output.weight[0, 0]
    block, embedding = weights.encoder.blocks[0], weights.encoder.embedding
    assert abs(embedding.tokens.std() - 1) < 0.02
    for linear, rows in ((block.feed_forward.inner, 64), (block.feed_forward.outer, 256)):
        for array in linear:
            assert 0.9 / rows**0.5 < np.abs(array).max() <= 1 / rows**0.5
    assert {str(array.dtype) for array in flatten(weights).values()} == {"float32"}
    wide = drawing.initial_weights(replace(settings, dtype="float64"), 500)
    np.testing.assert_array_equal(wide.output.weight.astype("float32"), weights.output.weight)


def test_keep_masks_are_those_of_the_step() -> None:
    tokens, settings = np.zeros((4, 8), int), replace(SMALL, width=64, dropout=0.25)
    first, again, next_one = (drawing.dropout(settings, tokens, step) for step in (3, 3, 4))
    sites = [first.embedding, *(part.norm for part in first.blocks[0])]
    assert {site.keep.shape for site in sites} == {(4, 8, 64)}
    assert all(abs(site.keep.mean() - 0.75) < 0.04 for site in sites)
    same = [bool((a == b).all()) for a, b in zip(flatten_keeps(first), flatten_keeps(again), strict=True)]
    assert all(same)
    assert not any((a == b).all() for a, b in zip(flatten_keeps(first), flatten_keeps(next_one), strict=True))
    assert drawing.dropout(replace(settings, dropout=0.0), tokens, 3) is None


def flatten_keeps(sites: object) -> list[np.ndarray]:
    return [array for array in leaves(sites).values() if isinstance(array, np.ndarray)]


def test_naive_bayes_by_hand() -> None:
    texts, labels = [np.array([2, 2, 3]), np.array([3]), np.array([4])], np.array([0, 0, 1])
    # (1, 1, 2, 3, 1) / 8 and (1, 1, 1, 1, 2) / 6, priors 2/3 and 1/3: word 2 is for label 0, word 4 for label 1.
    assert naive_bayes.accuracy(texts, labels, [np.array([2]), np.array([4])], np.array([0, 1]), 5) == 1
    # Word 4 and word 3: 2/3 * 1/8 * 3/8 = 1/32 against 1/3 * 2/6 * 1/6 = 1/54.
    assert naive_bayes.accuracy(texts, labels, [np.array([4, 3])], np.array([0]), 5) == 1


DAMAGES: dict[str, Callable[[Path], object]] = {
    "unknown label 'neutral'": lambda folder: (folder / "train/neutral").mkdir(),
    "has no reviews": lambda folder: [file.unlink() for file in (folder / "test/pos").iterdir()],
    "there is no folder": lambda folder: (folder / "train").rename(folder / "elsewhere"),
    "1_7.txt has no words": lambda folder: (folder / "train/pos/1_7.txt").write_text(" \n"),
    "1_7.txt cannot be read as text": lambda folder: (folder / "train/pos/1_7.txt").write_bytes(b"\xff\xfe"),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_bad_folders_are_refused(tmp_path: Path, message: str) -> None:
    folder = write_reviews(tmp_path, texts=2)
    DAMAGES[message](folder)
    with pytest.raises(ValueError, match=message):
        reviews.read(folder)
