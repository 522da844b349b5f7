"""A trained model on real sentences, where it is installed."""

from __future__ import annotations

import html
import importlib
import io
from functools import cache
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from conformance.checks.findings import Finding
from conformance.models import real
from conformance.operations.corpus import entries
from conformance.reports.content import document
from conformance.reports.junit import junit
from conformance.reports.page import page
from conformance.reports.real import layers_of, model_content, violations_of
from conformance.reports.real_comparison import model_changes
from conformance.reports.real_tables import real_report
from conformance.reports.sentences import describe_finding

needs_model = pytest.mark.skipif(
    bool(real.missing_packages()), reason=f"not installed: {', '.join(real.missing_packages())}"
)


def test_sentences() -> None:
    """Sixty-four of them, of differing lengths."""
    texts = real.sentences()
    assert len(texts) == 64
    assert len({len(text) for text in texts}) > 32


def test_real_inputs_are_in_the_corpus() -> None:
    found = [entry for entry in entries() if entry.name == "real inputs"]
    assert {entry.case.dtype for entry in found} == {"float32", "bfloat16", "float16"}
    assert len(found) == 5
    for entry in found:
        assert 0 < entry.case.options["mask"].keep.mean() < 1


PACKAGES = ["reference_numpy", "torch_impl", "jax_impl"]
PORTS = PACKAGES[1:]
ATTENTIONS = [f"blocks.{layer}.attention" for layer in range(6)]


@cache
def small_batch(count: int) -> real.Batch:
    return real.batch_of(real.sentences()[:count])


@pytest.fixture(autouse=True)
def worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition's side of each batch, which no fault here touches."""
    oracle_of, carried_embeddings = real.oracle_of, real.carried_embeddings
    monkeypatch.setattr(real, "oracle_of", lambda batch, dtype: kept(batch, dtype, oracle_of, dtype))
    monkeypatch.setattr(real, "carried_embeddings", lambda batch: kept(batch, "carried", carried_embeddings))


KEPT: dict[tuple[int, str], Any] = {}


def kept(batch: real.Batch, name: str, function: Any, *arguments: Any) -> Any:
    key = (len(batch.tokens), name)
    if key not in KEPT:
        KEPT[key] = function(batch, *arguments)
    return KEPT[key]


def judged(packages: list[str], count: int = 2, *, wide: bool = True) -> tuple[real.RealResult, dict[str, Any]]:
    """The first sentences, in both dtypes, and the report's part about them."""
    batch = small_batch(count)._replace(wide=wide)
    assert not batch.keep.all()
    result = real.judge_batch(batch, packages)
    return result, model_content([result], packages, count)


def violated(found: dict[str, Any], package: str) -> list[str]:
    (one,) = (one for one in found["implementations"] if one["name"] == package)
    return [step["step"] for step in one["steps"] if step["status"] == "violated"]


@needs_model
@pytest.mark.slow
def test_every_step_on_real_text() -> None:
    result, found = judged(PACKAGES)
    assert found["conforms"]
    assert found["version"] is not None
    assert [len(one["steps"]) for one in found["implementations"]] == [43, 43 + 44, 43 + 44]
    assert len(result.findings) == 3 * 43 + 2 * 44
    for cosines in result.cosines.values():
        assert cosines.min() >= 1 - 1e-6
    report = printed(found)
    assert "layer 5" in report
    assert "2 sentences, 43 steps" in report
    for package in PORTS:
        assert f"{package} in float64, 43 steps: largest error ratio 0." in report
    assert "reference_numpy in float64" not in report
    assert "violation" not in report


@needs_model
def test_the_shortest_sentences_are_judged_in_float64_too() -> None:
    assert [batch.wide for batch in real.batches()] == [False] * 7 + [True]
    lengths = [batch.tokens.shape[1] for batch in real.batches()]
    assert lengths == sorted(lengths, reverse=True)


@needs_model
@pytest.mark.parametrize("package", PORTS)
@pytest.mark.slow
def test_a_scale_off_by_a_thousandth_is_found_in_float64(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 it keeps its bound; in float64 it is named, in every layer, and nothing else but the whole is."""
    blocks = importlib.import_module(f"{package}.blocks")
    right = blocks.attention_options

    def wrong(width: int, mask: Any, dropout: Any, configuration: Any) -> dict[str, Any]:
        options = right(width, mask, dropout, configuration)
        return options | {"scale": 1.001 / (width / configuration.num_heads) ** 0.5}

    monkeypatch.setattr(blocks, "attention_options", wrong)
    importlib.import_module("jax").clear_caches()  # what was compiled of the right one
    _, found = judged(["reference_numpy", package])
    assert not found["conforms"]
    assert violated(found, "reference_numpy") == []
    assert violated(found, package) == [f"{step} in float64" for step in (*ATTENTIONS, "sentence embeddings")]
    assert f"{package}, blocks.0.attention in float64: blocks.0.attention[" in printed(found)


@needs_model
@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.slow
def test_padding_in_the_mean_is_found(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(package)
    right = module.pool
    monkeypatch.setattr(module, "pool", lambda x, pooling, keep: right(x, pooling, None))
    _, found = judged([package])
    whole = ["sentence embeddings: mean in float64", "sentence embeddings in float64"]
    assert violated(found, package) == ["sentence embeddings: mean", *(whole if package in PORTS else [])]


@needs_model
@pytest.mark.slow
def test_weights_that_are_not_widened_are_found_from_end_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight off by a millionth."""
    right = real.hidden_states

    def wrong(package: str, framework: Any, arrays: Any, batch: real.Batch) -> np.ndarray:
        norm = arrays.blocks[5].feed_forward_norm
        weight = norm.weight * (1 + 1e-6 * framework.array(np.arange(384) == 7))
        block = arrays.blocks[5]._replace(feed_forward_norm=norm._replace(weight=weight))
        return right(package, framework, arrays._replace(blocks=[*arrays.blocks[:5], block]), batch)

    monkeypatch.setattr(real, "hidden_states", wrong)
    _, found = judged(["torch_impl"])
    assert violated(found, "torch_impl") == ["sentence embeddings in float64"]


@needs_model
@pytest.mark.slow
def test_a_fault_is_in_every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """GELU a thousandth too large, in PyTorch: the feed-forward parts are beyond their bounds, and nothing else is."""
    activations = importlib.import_module("torch_impl.feed_forward").ACTIVATIONS
    gelu = activations["gelu"]
    monkeypatch.setitem(activations, "gelu", lambda x: 1.001 * gelu(x))
    _, found = judged(["reference_numpy", "torch_impl"], wide=False)
    definition, port = found["implementations"]
    assert (found["conforms"], definition["conforms"], port["conforms"]) == (False, True, False)
    assert violated(found, "torch_impl") == [f"blocks.{layer}.feed_forward" for layer in range(6)]
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
    off = Finding("blocks.4.attention", 1.5, (0,), 2.0, 1.0, 0.5)
    beyond = real.RealFinding("torch_impl", "blocks.4.attention", off)
    far = real.RealResult([beyond], {"torch_impl": np.array([1, 0.999])})
    text = printed(model_content([far], ["torch_impl"], 2))
    assert f"torch_impl, blocks.4.attention: {describe_finding(off)}" in text
    assert "definition's 1 - 1.0e-03" in text
    assert "all-MiniLM-L6-v2: 2 violations on real sentences." in text


def test_float64_is_told_apart() -> None:
    """In the table either dtype counts; the sums, which round once, are float32's."""
    ratios = {
        "blocks.0.attention: add": 1.0,
        "blocks.0.attention in float64": 0.25,
        "sentence embeddings in float64": 2e-6,
    }
    findings = [real.RealFinding("torch_impl", step, Finding(step, ratio)) for step, ratio in ratios.items()]
    found = model_content([real.RealResult(findings, {"torch_impl": np.ones(2)})], ["torch_impl"], 2)
    assert layers_of(found) == ["layer 0", "sentence embeddings"]
    text = printed(found)
    assert "0.25 / - / -" in text
    assert "2 sentences, 1 steps" in text
    line = "torch_impl in float64, 1 steps: largest error ratio 0.25, in blocks.0.attention"
    assert f"{line}; of the sentence embeddings, by the carried bound: 2e-06" in text


def test_steps_that_are_judged_for_the_first_time_are_one_change() -> None:
    """Where they conform; one that does not is told by itself."""

    def content(**ratios: float) -> dict[str, Any]:
        findings = [real.RealFinding("torch_impl", step, Finding(step, ratio)) for step, ratio in ratios.items()]
        found = model_content([real.RealResult(findings, {"torch_impl": np.ones(2)})], ["torch_impl"], 2)
        return document("run", [], models=[found])

    before, after = content(word=0.5), content(word=0.5, one=0.5, two=0.5, three=2.0)
    told = [(change.kind, change.rule, change.text) for change in model_changes(before, after)]
    assert told[0] == ("other", "one", "tried now for the first time, and 1 more; they conform")
    assert [(kind, rule) for kind, rule, _ in told[1:]] == [("worse", "three")]
