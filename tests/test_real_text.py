"""A trained model on real sentences, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rich.console import Console

from conformance.corpus import entries
from conformance.models import real
from conformance.models.carried import carried_bound
from conformance.reports.real import real_conforms, real_report
from tests.helpers import Implementation
from tests.test_dialects import assert_within

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
    assert real_conforms([result])
    assert len(result.findings) == 3 * 42
    for cosines in result.cosines.values():
        assert cosines.min() >= 1 - 1e-6
    console = Console(width=120, record=True, quiet=True)
    console.print(real_report([result], list(result.cosines), 3))
    report = console.export_text()
    assert "layer 5" in report
    assert "3 sentences, 42 steps" in report


@needs_model
def test_a_step_beyond_its_bound_does_not_conform() -> None:
    beyond = real.RealFinding("torch_impl", "blocks.4.attention", 1.5, "off")
    within = beyond._replace(ratio=0.5)
    assert real_conforms([real.RealResult([within], {"torch_impl": np.ones(2)})])
    assert not real_conforms([real.RealResult([beyond], {})])
    assert not real_conforms([real.RealResult([within], {"torch_impl": np.array([1, 0.999])})])
    assert not real_conforms([])


@needs_model
def test_hugging_face_agrees_from_end_to_end(implementation: Implementation) -> None:
    """Hidden states of its module and of the package's own model, within the carried bound; embeddings by cosine."""
    transformers = pytest.importorskip("transformers")
    module = transformers.BertModel.from_pretrained(real.folder(), add_pooling_layer=False).eval()
    batch, model = real.batch_of(real.sentences()[:2]), real.definition()
    with torch.no_grad():
        tokens, keep = torch.from_numpy(batch.tokens), torch.from_numpy(batch.keep)
        theirs = module(tokens, attention_mask=keep.long()).last_hidden_state.numpy()

    def run(functions: object) -> np.ndarray:
        called = functions.MODELS[type(model.parameters)]  # type: ignore[attr-defined]
        return called(model.parameters, batch.tokens, batch.keep, configuration=model.configuration)

    exact, bound = carried_bound(run, model.parameters, "float32")
    framework, arrays = real.own(implementation.package)
    ours = real.hidden(implementation.package, framework, arrays, batch)
    expected = real.embeddings(exact, batch)
    for states in (theirs, ours):
        assert_within(states, exact, bound, "float32")
        assert np.sum(real.embeddings(states, batch) * expected, axis=-1).min() >= 1 - 1e-6
