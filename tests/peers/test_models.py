"""Models of libraries, as rows of the matrix: their adapters can be found, and some verdicts are held."""

from __future__ import annotations

import importlib.util

import pytest

from conformance.peers import markdown, rows
from conformance.peers.models import MODELS
from conformance.peers.models.judging import judge_model
from specification.dialects import DIALECTS

pytestmark = pytest.mark.filterwarnings("ignore")  # what other libraries warn of is their own

RIGHT = (
    "transformers BertModel, sdpa",
    "transformers GPTNeoXForCausalLM, eager",
    "transformers ModernBertModel, eager",
    "transformers T5ForConditionalGeneration, eager",
    "transformers MixtralForCausalLM, sdpa, experts grouped_mm",
    "transformers DeepseekV3ForCausalLM, eager, experts eager",
    "torch nn.TransformerEncoder as BERT, fast path",
    "Keras on torch, layers as BERT",
    "torchtune llama3",
    "timm VisionTransformer",
    "litgpt GPT as Gemma 2",
)
WRONG = {
    "torch nn.TransformerEncoder as GPT-2, fast path": (("CALL", "", "the result is NaN, padding at the left"),),
    "torchtune gemma2": (
        ("TRF-1", "output", "the softcap is applied to the output layer's input, not to the logits"),
        ("BLK-1", "blocks.0.feed_forward", "feed_forward_norm and feed_forward_output_norm have changed places"),
    ),
    "KerasHub BertBackbone, by its converter": (("FFN-1", "blocks.0.feed_forward", "the activation is GELU by tanh"),),
    "curated-transformers LlamaCausalLM, another base": (
        ("POS-3", "blocks.0.self_attention", "the rotary base is 10000"),
    ),
    "curated-transformers GPTNeoXCausalLM": (("BLK-1", "blocks.0.self_attention", "both sublayers get the same"),),
    "litgpt GPT as Llama": (("POS-4", "blocks.0.self_attention", "YaRN's ramp is inverted"),),
}  # fmt: skip
"""By row, for each violation: the rule, the first wrong sublayer, and how the sentence begins."""


def judge_row(name: str, effort: str) -> rows.Row:
    peer = next(peer for peer in MODELS if peer.name == name)
    if peer.absent:
        pytest.skip(peer.absent)
    (row,) = rows.rows_of([judge_model(peer, effort, 2026)])
    return row


def test_every_model_can_be_found() -> None:
    """Without importing it, as that imports the library."""
    assert len({peer.name for peer in MODELS}) == len(MODELS)
    for peer in MODELS:
        module, _, builder = peer.subject.partition(":")
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        assert builder
        assert peer.dialect in DIALECTS


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_models_that_conform(name: str) -> None:
    row = judge_row(name, "quick")
    assert row.divergences == ()
    assert "✓" in markdown.format_markdown([row]).splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_models_that_depart(name: str) -> None:
    row = judge_row(name, "default")
    for found, (rule, step, message) in zip(row.divergences, WRONG[name], strict=True):
        assert (found.rule, found.step) == (rule, step)
        assert found.message.startswith(message)
        assert f"- **{rule}**" in markdown.format_markdown([row])
    assert rows.content(row)["divergences"] == [found._asdict() for found in row.divergences]
