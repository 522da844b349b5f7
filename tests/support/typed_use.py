"""What a user writes, for the type checker alone: no public name is of an unknown type."""

from typing import Any, assert_type

import jax
import numpy as np
import torch

import conformance
import jax_impl
import reference_numpy
import torch_impl
from conformance.checks.findings import Finding
from specification import Configuration, EncoderBlock, Linear, Transformer
from specification.optimizers import AdamState, SgdState
from specification.parameters import Decoder, DecoderBlock, Encoder


@conformance.declare(["causal"], dtypes=["float32"])
def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, *, mask: np.ndarray | None = None) -> np.ndarray:
    return reference_numpy.attention(query, key, value, mask=mask)


report = conformance.check(attention, "attention", arrays="numpy", effort="quick", limits={"keys": 64})
assert_type(report, conformance.Report)
assert_type(report.conforms, bool)

numbers = np.ones((1, 1, 2, 4), np.float32)
assert_type(attention(numbers, numbers, numbers), np.ndarray)
found = conformance.compare("attention", numbers, query=numbers, key=numbers, value=numbers, mask=conformance.Causal())
assert_type(found, conformance.Comparison)
assert_type(found.error_ratio, float)
assert_type(found.worst.index, tuple[int, ...])
assert_type(conformance.replay("conformance-replays/attention.json"), list[Finding])

# --- the three packages -----------------------------------------------------------------------------------------------

causal, configuration = conformance.Causal(), Configuration(1)


def use_reference_numpy(x: np.ndarray, block: EncoderBlock, other: DecoderBlock) -> None:
    linear = Linear(x)
    assert_type(reference_numpy.attention(x, x, x, mask=causal), np.ndarray)
    assert_type(reference_numpy.multi_head_attention(block.attention, x, x, x, num_heads=1, mask=x), np.ndarray)
    assert_type(reference_numpy.layer_norm(x, x, x), np.ndarray)
    assert_type(reference_numpy.rms_norm(x, x, eps=1e-6), np.ndarray)
    assert_type(reference_numpy.cross_entropy(x, x), np.ndarray)
    assert_type(reference_numpy.rotary_embedding(x, x), np.ndarray)
    assert_type(reference_numpy.encoder_block(block, x, configuration=configuration, mask=causal), np.ndarray)
    assert_type(reference_numpy.decoder_block(other, x, x, configuration=configuration, memory_mask=x), np.ndarray)
    model = Transformer(Encoder(None, [block]), Decoder(None, [other]))
    assert_type(reference_numpy.transformer(model, x, x, configuration=configuration), np.ndarray)
    assert_type(
        reference_numpy.adam_step(linear, linear, reference_numpy.adam_start(linear), learning_rate=0.1),
        tuple[Linear, AdamState],
    )
    assert_type(
        reference_numpy.sgd_step([x], [x], reference_numpy.sgd_start([x]), learning_rate=0.1),
        tuple[list[np.ndarray], SgdState],
    )
    assert_type(reference_numpy.clip_by_global_norm({"x": x}, 1.0), tuple[dict[str, np.ndarray], np.ndarray])
    assert_type(reference_numpy.load("gpt2", {"x": x}), reference_numpy.Model)
    loaded = reference_numpy.load_pretrained("folder")
    assert_type(loaded(x, mask=causal), np.ndarray)
    assert_type(reference_numpy.greedy(loaded, x, 3), np.ndarray)


def use_torch_impl(x: torch.Tensor, block: EncoderBlock, other: DecoderBlock) -> None:
    linear = Linear(x)
    assert_type(torch_impl.attention(x, x, x, mask=causal), torch.Tensor)
    assert_type(torch_impl.multi_head_attention(block.attention, x, x, x, num_heads=1, mask=x), torch.Tensor)
    assert_type(torch_impl.layer_norm(x, x, x), torch.Tensor)
    assert_type(torch_impl.rms_norm(x, x, eps=1e-6), torch.Tensor)
    assert_type(torch_impl.cross_entropy(x, x), torch.Tensor)
    assert_type(torch_impl.rotary_embedding(x, x), torch.Tensor)
    assert_type(torch_impl.encoder_block(block, x, configuration=configuration, mask=causal), torch.Tensor)
    assert_type(torch_impl.decoder_block(other, x, x, configuration=configuration, memory_mask=x), torch.Tensor)
    model = Transformer(Encoder(None, [block]), Decoder(None, [other]))
    assert_type(torch_impl.transformer(model, x, x, configuration=configuration), torch.Tensor)
    assert_type(
        torch_impl.adam_step(linear, linear, torch_impl.adam_start(linear), learning_rate=0.1), tuple[Linear, AdamState]
    )
    assert_type(
        torch_impl.sgd_step([x], [x], torch_impl.sgd_start([x]), learning_rate=0.1), tuple[list[torch.Tensor], SgdState]
    )
    assert_type(torch_impl.clip_by_global_norm({"x": x}, 1.0), tuple[dict[str, torch.Tensor], torch.Tensor])
    assert_type(torch_impl.load("gpt2", {"x": x}), torch_impl.Model)
    loaded = torch_impl.load_pretrained("folder")
    assert_type(loaded(x, mask=causal), Any)
    assert_type(torch_impl.greedy(loaded, x, 3), torch.Tensor)


def use_jax_impl(x: jax.Array, block: EncoderBlock, other: DecoderBlock) -> None:
    linear = Linear(x)
    assert_type(jax_impl.attention(x, x, x, mask=causal), jax.Array)
    assert_type(jax_impl.multi_head_attention(block.attention, x, x, x, num_heads=1, mask=x), jax.Array)
    assert_type(jax_impl.layer_norm(x, x, x), jax.Array)
    assert_type(jax_impl.rms_norm(x, x, eps=1e-6), jax.Array)
    assert_type(jax_impl.cross_entropy(x, x), jax.Array)
    assert_type(jax_impl.rotary_embedding(x, x), jax.Array)
    assert_type(jax_impl.encoder_block(block, x, configuration=configuration, mask=causal), jax.Array)
    assert_type(jax_impl.decoder_block(other, x, x, configuration=configuration, memory_mask=x), jax.Array)
    model = Transformer(Encoder(None, [block]), Decoder(None, [other]))
    assert_type(jax_impl.transformer(model, x, x, configuration=configuration), jax.Array)
    assert_type(
        jax_impl.adam_step(linear, linear, jax_impl.adam_start(linear), learning_rate=0.1), tuple[Linear, AdamState]
    )
    assert_type(
        jax_impl.sgd_step([x], [x], jax_impl.sgd_start([x]), learning_rate=0.1), tuple[list[jax.Array], SgdState]
    )
    assert_type(jax_impl.clip_by_global_norm({"x": x}, 1.0), tuple[dict[str, jax.Array], jax.Array])
    assert_type(jax_impl.load("gpt2", {"x": x}), jax_impl.Model)
    loaded = jax_impl.load_pretrained("folder")
    assert_type(loaded(x, mask=causal), jax.Array)
    assert_type(jax_impl.greedy(loaded, x, 3), jax.Array)
