"""The frozen corpus: its cases convict what is wrong past their sizes, in their memory, or after their calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from conformance.cases import features
from conformance.checks.levels import JUDGED
from conformance.mistakes.planting import PlantedMistake
from conformance.operations import corpus
from conformance.selftest import behaviours, selftest
from tests.support.helpers import EVERYTHING, NumpySubject, Runner, find_errors, find_mistake


def planted(id: str, operation: str = "attention", **values: object) -> PlantedMistake:
    return PlantedMistake(replace(find_mistake(id).choose(**values), operations=(operation,)))


PAST_A_SIZE: list[tuple[str, selftest.Planted]] = [
    ("more than 256 keys", planted("extents.keys-again", n=256)),
    ("more than 1024 keys", planted("extents.key-passed-over", n=1024)),
    ("more than 64 keys", planted("extents.key-tail-filled", block=64)),
    ("more than 1024 queries", planted("extents.queries-past", n=1024)),
    ("wide values", planted("extents.columns-past", n=128)),
    ("many heads", planted("extents.heads-past", n=32)),
    ("a large batch", planted("extents.batch-elements-past", n=1024)),
    ("a mask of many keys", planted("masks.ignored-from-key", first=64)),
    ("a causal mask of many keys", planted("masks.causal-ignored-from", first=256)),
    ("gradients of many keys", planted("backward.zero-past", first=256)),
    ("weights of many keys", planted("extents.keys-past", "attention_weights", n=64)),
    ("wide rows", planted("norms.columns-not-written", "layer_norm", first=128)),
    ("many rows", planted("norms.rows-not-written", "rms_norm", first=48)),
    ("gradients of many rows", planted("norm_gradients.rows-lost", "layer_norm", first=256)),
    ("a large table", planted("lookups.rows-start-anew", "embedding", size=128)),
]
BEHAVIOURS = {
    "heads by stride 0": "heads that share one key by a stride of 0 read on",
    "heads of one fused projection": "rows of query of 64 columns as if they followed each other",
    "transposed heads": "values past 16 keys as if contiguous",
    "keys of a longer cache": "keys of width past 32 as if contiguous",
    "a misaligned query": "query from the last 16 bytes on",
    "a sliced cotangent": "rows of the cotangent as if they followed each other",
    "a slice of rows": "rows of x as if they followed each other",
    "other sizes before": "number of keys of the first call of a width",
    "another scale before": "scale of the first call of a width",
    "a larger call before": "workspace of parts of 32 keys not cleared",
    "another eps before": "eps of the first call of a width",
    "more rows before": "weight's gradient added to that of more rows before",
}


def entries_of(title: str) -> list[corpus.Entry]:
    return [entry for entry in corpus.entries() if entry.name == title]


def convicts(entry: corpus.Entry, subject: Any) -> bool:
    return bool(find_errors(Runner(subject), entry.example, entry.check.name))


def test_the_manifest_counts_them() -> None:
    assert corpus.manifest()["cases"] == len(corpus.entries())
    assert {entry.rule for entry in corpus.entries()} <= set(JUDGED)


@pytest.mark.parametrize(("title", "one"), PAST_A_SIZE, ids=[title for title, _ in PAST_A_SIZE])
def test_large_cases_convict_mistakes_past_a_size(title: str, one: selftest.Planted) -> None:
    """And not what is right."""
    found = [entry for entry in entries_of(title) if entry.operations == (one.operation,)]
    assert any(convicts(entry, one.make()) for entry in found)
    assert not any(convicts(entry, NumpySubject()) for entry in found)


@pytest.mark.parametrize("title", BEHAVIOURS)
def test_layouts_and_earlier_calls_convict_behaviours(title: str) -> None:
    [one] = [one for one in behaviours.behaviours() if one.name == BEHAVIOURS[title]]
    [entry] = entries_of(title)
    assert convicts(entry, one.make())
    assert not convicts(entry, one.make_right())


def test_every_kind_is_there() -> None:
    large: Counter[str] = Counter()
    for entry in corpus.entries():
        large |= Counter(features.dimensions(entry.case))
    least = {"keys": 1025, "queries": 1025, "batch": 1025, "heads": 65, "key_width": 200, "value_width": 160}
    assert {name: size for name, size in least.items() if large[name] < size} == {}
    layouts = {kind for entry in corpus.entries() for kind in entry.case.memory.values()}
    assert layouts >= {"shared heads", "shared rows", "fused", "transposed", "cached", "misaligned", "sliced"}


def test_only_what_is_taken_is_asked() -> None:
    """No layouts where arrays have no strides, and of several calls all are within the declaration."""
    assert all(not entry.case.memory for entry in corpus.entries_for({"attention"}, replace(EVERYTHING, strides=False)))
    asked = corpus.entries_for({"attention"}, replace(EVERYTHING, limits={"keys": 64}))
    assert any(entry.check.name == "after other calls" for entry in asked)
    assert all(features.dimensions(case)["keys"] <= 64 for entry in asked for case in entry.cases)
    assert any(
        features.dimensions(entry.cases[1])["keys"] <= 64 < features.dimensions(entry.case)["keys"]
        for entry in corpus.entries()
        if entry.check.name == "after other calls" and entry.operations == ("attention",)
    )


def test_real_inputs_are_in_the_corpus() -> None:
    found = [entry for entry in corpus.entries() if entry.name == "real inputs"]
    assert {entry.case.dtype for entry in found} == {"float32", "bfloat16", "float16"}
    assert len(found) == 3
    for entry in found:
        assert 0 < entry.case.options["mask"].keep.mean() < 1
