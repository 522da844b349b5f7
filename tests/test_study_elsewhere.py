"""Names that a page's code uses and does not show are found, and say what they are."""

from __future__ import annotations

import pytest

from study.elsewhere import definitions, first_sentence, imported, meanings, used
from study.operations import OPERATIONS, Operation
from study.sources import ROOT


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_every_name_says_what_it_is(operation: Operation) -> None:
    silent = [
        f"{one.definition.path}: {name}"
        for name, all_of_it in meanings(operation.functions).items()
        for one in all_of_it
        if not one.definition.says
    ]
    assert silent == []


def test_names_are_found_where_they_are_defined() -> None:
    """A helper of one port, one that is imported, one of a module, and what another page shows."""
    softmax = meanings(next(one for one in OPERATIONS if one.name == "softmax").functions)
    (row_maximum,) = softmax["row_maximum"]
    assert (row_maximum.labels, row_maximum.definition.path) == (("PyTorch",), "torch_impl/attention.py")
    attention = meanings(next(one for one in OPERATIONS if one.name == "attention").functions)
    (checks,) = attention["checks.attention"]
    assert checks.definition.path == "specification/checks/operations.py"
    assert checks.labels == ("NumPy", "PyTorch", "JAX")
    assert [one.page for one in attention["softmax"]] == ["softmax"]
    assert [one.definition.path for one in attention["engines.LIMITS"]] == [
        "torch_impl/engines.py",
        "jax_impl/engines.py",
    ]
    assert "attention" not in attention
    assert "literal_attention" not in attention


def test_a_line_tells_where() -> None:
    for name, one in definitions("torch_impl/attention.py").items():
        assert name in (ROOT / one.path).read_text().splitlines()[one.line - 1]


def test_names_of_a_function_s_own_are_not_meant() -> None:
    path = "torch_impl/attention.py"
    known = {*definitions(path), *imported(path)}
    found = {name.partition(".")[0] for name, _ in used(path, "softmax")}
    assert {"row_maximum"} <= found <= known


def test_first_sentences() -> None:
    assert first_sentence("Rows of x: each of its own.\n\nMore.") == "Rows of x: each of its own"
    assert first_sentence("At 2.5, in `x`. And more.") == "At 2.5, in `x`"
