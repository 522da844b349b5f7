"""The frozen corpus: each chosen case convicts its planted fault, and nothing that is right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.cases.declaration import EVERYTHING
from conformance.cases.features import dimensions
from conformance.checks.catalogue import AFTER_OTHER_CALLS, AGREEMENT
from conformance.checks.judged_rules import JUDGED
from conformance.operations.corpus import Entry, entries, entries_for, manifest
from conformance.selftest import corpus_cases
from conformance.selftest.faults import Fault, absent, planted

if absent():
    pytest.skip(f"the faults need {', '.join(absent())}", allow_module_level=True)

FAULTS: dict[str, Fault] = {fault.title: fault for fault in planted()}
FROZEN: dict[tuple[str, str], Entry] = {(f"{entry.rule} {entry.shows}", entry.name): entry for entry in entries()}


def test_the_manifest_counts_them() -> None:
    assert manifest()["cases"] == len(entries())
    assert {entry.rule for entry in entries()} <= set(JUDGED)


@pytest.mark.parametrize("one", corpus_cases.CHOSEN, ids=lambda one: one.fault)
def test_each_case_convicts_its_fault_alone(one: corpus_cases.Chosen) -> None:
    entry = FROZEN[one.fault, one.title]
    assert corpus_cases.shows(FAULTS[one.fault], entry.check, entry.example)
    assert all(entry.operations == (case.operation,) for case in entry.cases)


def test_every_kind_is_there() -> None:
    large: dict[str, int] = {}
    for one in corpus_cases.SIZES:
        for name, size in dimensions(FROZEN[one.fault, one.title].case).items():
            large[name] = max(size, large.get(name, 0))
    least = {"keys": 1025, "queries": 1025, "batch": 1025, "heads": 65, "key_width": 200, "value_width": 160}
    assert {name: size for name, size in least.items() if large[name] < size} == {}
    layouts = {kind for one in corpus_cases.MEMORY for kind in FROZEN[one.fault, one.title].case.memory.values()}
    assert layouts == {"shared heads", "shared rows", "fused", "transposed", "cached", "misaligned", "sliced"}


def test_only_what_is_taken_is_asked() -> None:
    """No layouts where arrays have no strides, and of several calls all are within the declaration."""
    assert all(not entry.case.memory for entry in entries_for({"attention"}, replace(EVERYTHING, strides=False)))
    asked = entries_for({"attention"}, replace(EVERYTHING, limits={"keys": 64}))
    assert any(entry.check == AFTER_OTHER_CALLS for entry in asked)
    assert all(dimensions(case)["keys"] <= 64 for entry in asked for case in entry.cases)
    assert any(
        dimensions(entry.cases[1])["keys"] <= 64 < dimensions(entry.case)["keys"]
        for entry in entries()
        if entry.check == AFTER_OTHER_CALLS and entry.operations == ("attention",)
    )


def test_a_right_case_is_not_taken_for_a_fault() -> None:
    """What is too small for a fault does not show it."""
    entry = FROZEN["ATT-8 keys past 256 read from the beginning", "more than 256 keys"]
    key, value = (entry.case.inputs[name][:, :, :256] for name in ("key", "value"))
    smaller = replace(entry.case, inputs=entry.case.inputs | {"key": key, "value": value})
    fault = FAULTS["ATT-8 keys past 256 read from the beginning"]
    assert not corpus_cases.shows(fault, AGREEMENT, smaller)
