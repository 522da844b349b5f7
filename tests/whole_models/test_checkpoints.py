"""Checkpoints that are drawn for ports: what the definition reads in them, and how they are changed."""

from __future__ import annotations

import numpy as np
import pytest

from conformance.ports.cases import isolate_sublayer, list_sublayers, shrink_stream
from conformance.ports.checkpoints import Checkpoint, draw_checkpoint, read_checkpoint, read_parameters
from conformance.ports.configs import list_configs
from specification.checkpoints import flatten
from specification.dialects import DIALECTS

CONFIGS = [(dialect, number) for dialect in DIALECTS for number in range(len(list_configs(dialect)))]


def draw(dialect: str, number: int = 0) -> Checkpoint:
    return draw_checkpoint(dialect, list_configs(dialect)[number], np.random.default_rng(0))


@pytest.mark.parametrize(("dialect", "number"), CONFIGS)
def test_the_definition_reads_the_same_numbers(dialect: str, number: int) -> None:
    checkpoint = draw(dialect, number)
    entries = {name: array.astype(np.float64) for name, array in checkpoint.state_dict().items()}
    parameters, configuration = read_parameters(DIALECTS[dialect], checkpoint.config, entries)
    assert configuration == checkpoint.configuration
    read, own = flatten(parameters), flatten(checkpoint.parameters)
    assert read.keys() == own.keys()
    for path, array in read.items():
        np.testing.assert_array_equal(array, own[path])


def test_names_are_those_of_the_library() -> None:
    assert "encoder.layer.0.attention.self.query.weight" in draw("bert").state_dict()
    untied, tied = draw("gpt2", 2).state_dict(), draw("gpt2").state_dict()
    assert {"lm_head.weight", "transformer.h.0.attn.c_attn.weight"} <= untied.keys()
    assert "lm_head.weight" not in tied
    assert "embed_out.weight" in draw("gpt_neox").state_dict()
    assert "lm_head.weight" in draw("t5", 1).state_dict()


def test_a_parameter_is_changed_under_the_name_of_its_entry() -> None:
    checkpoint = draw("gpt2")
    changed = checkpoint.change({"decoder.blocks.1.self_attention.key.bias": 7.0}).state_dict()
    bias = changed["transformer.h.1.attn.c_attn.bias"].reshape(3, -1)
    assert (bias[1] == 7).all()
    assert not (bias[[0, 2]] == 7).any()
    assert checkpoint.change({"no.such.path": 1.0}).state_dict().keys() == changed.keys()


def test_gradients_of_a_tied_table_are_added() -> None:
    """The entries of a fused matrix get the gradients of its parts; the token table those of both its places."""
    checkpoint = draw("gpt2")
    ones = read_checkpoint("gpt2", checkpoint.config, {n: np.ones_like(a) for n, a in checkpoint.state_dict().items()})
    gradients = checkpoint.sum_gradients(ones.parameters)
    assert (gradients["transformer.wte.weight"] == 2).all()
    assert all((array == 1).all() for name, array in gradients.items() if "wte" not in name)


def test_one_sublayer_alone_leaves_the_others_silent() -> None:
    checkpoint = draw("llama")
    names = [*list_sublayers(checkpoint)]
    assert names[:2] == ["decoder.blocks.0.self_attention", "decoder.blocks.0.feed_forward"]
    alone = flatten(isolate_sublayer(checkpoint, names[1]).parameters)
    assert alone["decoder.blocks.0.feed_forward.outer.weight"].any()
    assert not alone["decoder.blocks.0.self_attention.output.weight"].any()
    assert not alone["decoder.blocks.1.feed_forward.outer.weight"].any()


def test_little_goes_into_norms_also_where_the_weight_is_one_more() -> None:
    small = flatten(shrink_stream(draw("gemma2")).parameters)
    assert np.abs(1 + small["decoder.blocks.0.self_attention_output_norm.weight"]).max() < 0.01
    assert np.abs(small["decoder.embedding.tokens"]).max() < 0.02
