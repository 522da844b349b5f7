"""Names that a page's code uses and does not show are found, and say what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.side_by_side.operations import OPERATIONS, Operation
from conformance.side_by_side.sources import ROOT
from study import elsewhere
from study.elsewhere import closed, definitions, first_sentence, meanings, used


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_every_name_says_what_it_is(operation: Operation) -> None:
    """In three words at least, or a formula, and to the end."""
    for name, all_of_it in meanings(operation.functions).items():
        for one in all_of_it:
            says = one.definition.says
            assert len(says.split()) >= 3, (one.definition.path, name, says)
            assert closed(says), (one.definition.path, name, says)


def test_names_are_found_where_they_are_defined() -> None:
    """A helper of one port, one that is imported, one of a module, and what another page shows."""
    softmax = meanings(next(one for one in OPERATIONS if one.name == "softmax").functions)
    (row_maximum,) = softmax["row_maximum"]
    assert (row_maximum.labels, row_maximum.definition.path) == (("PyTorch",), "torch_impl/attention_steps.py")
    attention = meanings(next(one for one in OPERATIONS if one.name == "attention").functions)
    (checks,) = attention["checks.attention"]
    assert checks.definition.path == "specification/checks/operations.py"
    assert checks.labels == ("NumPy", "PyTorch", "JAX")
    assert {one.page for one in attention["softmax"]} == {"softmax"}
    assert [one.definition.path for one in attention["choice.LIMITS"]] == [
        "torch_impl/engines/choice.py",
        "jax_impl/engines/choice.py",
    ]
    assert "attention" not in attention
    assert "reference_attention" not in attention


def test_a_line_tells_where() -> None:
    for name, one in definitions("torch_impl/attention_steps.py").items():
        assert name in (ROOT / one.path).read_text().splitlines()[one.line - 1]


def test_what_is_true_of_one_port_is_said_of_that_one() -> None:
    scores = meanings(next(one for one in OPERATIONS if one.name == "attention").functions)
    says = {label: one.definition.says for one in scores["visible_pairs"] for label in one.labels}
    assert set(says) == {"NumPy", "PyTorch", "JAX"}
    assert "block of queries" in says["NumPy"]
    assert "block of queries" not in says["PyTorch"] + says["JAX"]


def test_names_of_a_function_s_own_are_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments and what it assigns, though the file has such names too."""
    monkeypatch.setattr(elsewhere, "ROOT", tmp_path)
    (tmp_path / "own.py").write_text(
        "def helper(): ...\ndef scale(): ...\ndef rows(): ...\n"
        "def asked(scale):\n    rows = helper(scale)\n    return rows\n"
    )
    assert [name for name, _ in used("own.py", "asked")] == ["helper"]


def test_first_sentences() -> None:
    assert first_sentence("Rows of x: each of its own.\n\nMore.") == "Rows of x: each of its own"
    assert first_sentence("At 2.5, in `x`. And more.") == "At 2.5, in `x`"
    assert first_sentence("A root (NORM-7; See there). More.") == "A root (NORM-7; See there)"
    assert first_sentence("A rate in [0, 1). More.") == "A rate in [0, 1)"
