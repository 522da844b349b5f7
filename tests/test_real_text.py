"""A trained model on real sentences, where it is installed."""

from __future__ import annotations

import html
import importlib
import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from conformance.corpus import entries
from conformance.models import real
from conformance.reports.content import document
from conformance.reports.junit import junit
from conformance.reports.page import page
from conformance.reports.real import model_content, violations_of
from conformance.reports.real_tables import real_report

needs_model = pytest.mark.skipif(bool(real.missing()), reason=f"not installed: {', '.join(real.missing())}")


def test_sentences() -> None:
    """Sixty-four of them, of differing lengths."""
    texts = real.sentences()
    assert len(texts) == 64
    assert len({len(text) for text in texts}) > 32


def test_real_inputs_are_in_the_corpus() -> None:
    found = [entry for entry in entries() if entry.title == "real inputs"]
    assert {entry.case.dtype for entry in found} == {"float32", "bfloat16", "float16"}
    assert len(found) == 5
    for entry in found:
        assert 0 < entry.case.options["mask"].keep.mean() < 1


@needs_model
def test_every_step_on_real_text() -> None:
    batch = real.batch_of(real.sentences()[:3])
    assert not batch.keep.all()
    result = real.judge_batch(batch, ["reference_numpy", "torch_impl", "jax_impl"])
    found = model_content([result], list(result.cosines), 3)
    assert found["conforms"]
    assert found["version"] is not None
    assert [len(one["steps"]) for one in found["implementations"]] == [42, 42, 42]
    assert len(result.findings) == 3 * 42
    for cosines in result.cosines.values():
        assert cosines.min() >= 1 - 1e-6
    report = printed(found)
    assert "layer 5" in report
    assert "3 sentences, 42 steps" in report
    assert "violation" not in report


@needs_model
def test_a_fault_is_in_every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """GELU a thousandth too large, in PyTorch: the feed-forward parts are beyond their bounds, and nothing else is."""
    activations = importlib.import_module("torch_impl.feed_forward").ACTIVATIONS
    gelu = activations["gelu"]
    monkeypatch.setitem(activations, "gelu", lambda x: 1.001 * gelu(x))
    result = real.judge_batch(real.batch_of(real.sentences()[:2]), ["reference_numpy", "torch_impl"])
    found = model_content([result], list(result.cosines), 2)
    definition, port = found["implementations"]
    assert (found["conforms"], definition["conforms"], port["conforms"]) == (False, True, False)
    layers = [f"blocks.{layer}.feed_forward" for layer in range(6)]
    assert [step["step"] for step in port["steps"] if step["status"] == "violated"] == layers
    report = document("run", [], models=[found])
    assert not report["conforms"]
    for text in (printed(found), junit(report), page(report)):
        assert "torch_impl" in text
        assert violations_of(port)["blocks.5.feed_forward"] in html.unescape(text)


def printed(found: dict[str, Any]) -> str:
    console = Console(width=400, file=io.StringIO(), record=True)
    console.print(real_report(found))
    return console.export_text()


def test_what_is_beyond_its_bound_is_printed() -> None:
    beyond = real.RealFinding("torch_impl", "blocks.4.attention", 1.5, "off by half")
    far = real.RealResult([beyond], {"torch_impl": np.array([1, 0.999])})
    text = printed(model_content([far], ["torch_impl"], 2))
    assert "torch_impl, blocks.4.attention: off by half" in text
    assert "definition's 1 - 1.0e-03" in text
    assert "all-MiniLM-L6-v2: 2 violations on real sentences." in text
