"""What whole models do with particular settings and inputs, held to closed forms and to the same thing said otherwise.

Most of these were found by mutation testing (`docs/mutation.md`): each notices an edit that all other tests let pass.
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from specification import (
    Causal,
    Configuration,
    Decoder,
    Embedding,
    Encoder,
    KeyPadding,
    Linear,
    Norm,
    Transformer,
)
from specification.dropout import Dropout, TransformerDropout
from tests.support.helpers import REFERENCE, Implementation, error_of
from tests.support.small_models import BATCH, EXAMPLES, VOCABULARY, E, H, Maker, decoding, fitted, generated, model_of
from tests.support.todays_models import TODAY

TOKENS = np.array([[3, 7, 1, 7, 5], [7, 7, 2, 9, 4]])
PADDING = 7
PLAIN = Configuration(H, positions="none", target_mask="none")


def encoder() -> Encoder:
    return fitted(Maker().encoder(1), PLAIN)


def decoder(**changed: Any) -> Decoder:
    return fitted(Maker().decoder(1, cross=False), PLAIN)._replace(**changed)


# --- embeddings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm", "standard_deviation_norm"])
def test_a_norm_has_the_configurations_eps(implementation: Implementation, norm: str, eps: float) -> None:
    table, weight, bias = Maker().array(VOCABULARY, E), Maker(1).array(E), Maker(2).array(E)
    biases = () if norm == "rms_norm" else (bias,)
    embedding = Embedding(table, norm=Norm(weight, *biases))
    configuration = replace(PLAIN, norm=norm, norm_eps=eps)
    got = implementation.call("embed", embedding, TOKENS, configuration=configuration)
    assert np.array_equal(got, implementation.call(norm, table[TOKENS], weight, *biases, eps=eps))


def test_a_root_mean_square_norm_has_no_bias(implementation: Implementation) -> None:
    embedding = Embedding(Maker().array(VOCABULARY, E), norm=Maker().norm())
    configuration = replace(PLAIN, norm="rms_norm")
    told = error_of(implementation.call, "embed", embedding, TOKENS, configuration=configuration)
    assert told == (ValueError, "bias must be None in rms_norm, got float64 array of shape [16]")


@pytest.mark.parametrize(("positions", "exponent"), [("sinusoidal", "shared"), ("doubled", "doubled")])
def test_exponents_of_sinusoidal_positions(implementation: Implementation, positions: str, exponent: str) -> None:
    embedding = Embedding(np.zeros((VOCABULARY, E)))
    got = implementation.call("embed", embedding, TOKENS, configuration=replace(PLAIN, positions=positions))
    expected = implementation.call("sinusoidal_positions", 5, E, exponent=exponent, dtype="float64")
    assert np.array_equal(got, np.broadcast_to(expected, got.shape))


def test_positions_are_counted_after_padding(implementation: Implementation) -> None:
    """padding + 1, padding + 2, ... for real tokens, and padding for what is none."""
    table = Maker().array(20, E)
    configuration = replace(PLAIN, positions="after_padding", position_padding=PADDING)
    embedding = Embedding(np.zeros((VOCABULARY, E)), table)
    got = implementation.call("embed", embedding, TOKENS, configuration=configuration)
    assert np.array_equal(got, table[[[8, 7, 9, 7, 10], [7, 7, 8, 9, 10]]])
    told = error_of(
        lambda: implementation.call(
            "embed", embedding._replace(positions=table[:10]), TOKENS, configuration=configuration
        )
    )
    assert told[0] is ValueError
    assert "positions after padding" in told[1]


IMAGE_REFUSALS = {
    "a side that is no multiple": ((2, 3, 5, 6),
          "images must have sides that are multiples of patch_size=2, got 5 and 6"),
    "another side": ((2, 3, 4, 7), "images must have sides that are multiples of patch_size=2, got 4 and 7"),
    "more patches": ((2, 3, 6, 6), "positions must have shape [10, 16] beside patches.weight [12, 16], got [7, 16]"),
    "nothing": ((2, 3, 0, 6), "positions must have shape [1, 16] beside patches.weight [12, 16], got [7, 16]"),
    "one channel": ((2, 1, 4, 6), "patches.weight must have shape [4, E], got [12, 16]"),
    "no batch": ((3, 4, 6), "images must have shape [B, C, height, width], got [3, 4, 6]"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", IMAGE_REFUSALS)
def test_images_that_are_refused(implementation: Implementation, mistake: str) -> None:
    (shape, words), vit = IMAGE_REFUSALS[mistake], TODAY["vit"]()
    model = implementation.Model(implementation.convert(vit.parameters("float32")), vit.configuration)
    images = implementation.convert(np.zeros(shape, np.float32))
    assert error_of(model, images) == (ValueError, words)


def test_memory_of_another_batch_is_refused(implementation: Implementation) -> None:
    t5 = TODAY["t5"]()
    model = implementation.Model(implementation.convert(t5.parameters("float32")), t5.configuration)
    source, target = map(implementation.convert, t5.inputs)
    told = (ValueError, "memory must have shape [2, S, E], got [1, 5, 16]")
    assert error_of(model, source[:1], target) == told


@pytest.mark.parametrize(("name", "kind"), [("llama", "DecoderBlock"), ("modernbert", "EncoderBlock")])
def test_what_is_no_block_is_refused(implementation: Implementation, name: str, kind: str) -> None:
    """Before rotations are made for all blocks."""
    example = TODAY[name]()
    parameters = implementation.convert(example.parameters("float32"))
    stack = getattr(parameters, "decoder", parameters)
    stack = stack._replace(blocks=[stack.blocks[0], stack.norm])
    whole = parameters._replace(decoder=stack) if name == "llama" else stack
    operation = implementation.language_model if name == "llama" else implementation.encoder
    tokens = implementation.convert(example.target())
    told = error_of(operation, whole, tokens, configuration=example.configuration)
    assert told == (TypeError, f"blocks[1] must be a {kind}, got Norm")


# --- masks ------------------------------------------------------------------------------------------------------------


def test_padding_of_the_source_is_a_mask(implementation: Implementation) -> None:
    configuration = replace(PLAIN, source_padding=PADDING)
    got = implementation.call("encoder", encoder(), TOKENS, configuration=configuration)
    mask = KeyPadding(TOKENS != PADDING)
    assert np.array_equal(got, implementation.call("encoder", encoder(), TOKENS, configuration=PLAIN, mask=mask))
    assert not np.allclose(got, implementation.call("encoder", encoder(), TOKENS, configuration=PLAIN))


@pytest.mark.parametrize("padding", [None, PADDING])
@pytest.mark.parametrize("target_mask", ["none", "causal", "causal and real keys", "causal and real queries"])
def test_masks_that_a_configuration_names(
    implementation: Implementation, target_mask: str, padding: int | None
) -> None:
    """Each is the mask that says the same, given where the configuration names none."""
    real = np.ones(TOKENS.shape, bool) if padding is None else padding != TOKENS
    causal = np.tril(np.ones((5, 5), bool))
    allowed = {
        "none": np.ones((2, 1, 5, 5), bool),
        "causal": np.broadcast_to(causal, (2, 1, 5, 5)),
        "causal and real keys": causal & real[:, None, None, :],
        "causal and real queries": causal & real[:, None, :, None],
    }[target_mask]
    named = replace(PLAIN, target_mask=target_mask, target_padding=padding)
    got = implementation.call("decoder", decoder(), TOKENS, configuration=named)
    expected = implementation.call("decoder", decoder(), TOKENS, configuration=PLAIN, mask=allowed)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("hidden", [False, True], ids=["causal alone", "beside another"])
def test_a_decoder_of_embedded_tokens_is_causal(implementation: Implementation, hidden: bool) -> None:
    x, bare = Maker(3).array(2, 5, E), decoder(embedding=None)
    mask = KeyPadding(np.array([[True, False, True, True, True]] * 2)) if hidden else None
    for target_mask in ("causal", "causal and real keys", "causal and real queries"):
        named = replace(PLAIN, target_mask=target_mask)
        got = implementation.call("decoder", bare, x, configuration=named, mask=mask)
        both = Causal() & mask if hidden else Causal()
        assert np.array_equal(got, implementation.call("decoder", bare, x, configuration=PLAIN, mask=both))


# --- pooling and outputs ----------------------------------------------------------------------------------------------


def test_the_largest_of_what_is_kept(implementation: Implementation) -> None:
    """All below 0, and the first that is kept not the largest."""
    x = np.array([[[-1.0, -1.0], [-3.0, -2.0], [-2.0, -3.0]]])
    assert np.array_equal(implementation.call("pool", x, "max", np.array([[False, True, True]])), [[-2, -2]])


def test_what_may_be_kept(implementation: Implementation) -> None:
    x = np.ones((2, 3, 4))
    told = error_of(implementation.call, "pool", x, "max", np.ones((2, 4), bool))
    assert told == (ValueError, "keep must have shape [2, 3] beside x [2, 3, 4], got [2, 4]")
    told = error_of(implementation.call, "pool", x, "mean", np.ones((2, 3)))
    assert told == (TypeError, "keep must be boolean, got float64")


def test_log_probabilities_of_large_logits(implementation: Implementation) -> None:
    classifier = fitted(Maker().classifier(1), PLAIN)
    classifier = classifier._replace(output=Linear(np.zeros((E, 3)), np.array([1e4, 0.0, -1e4])))
    got = implementation.call("classifier", classifier, TOKENS, configuration=PLAIN)
    assert np.array_equal(got, [[0, -1e4, -2e4]] * 2)


@pytest.mark.parametrize("pooling", ["max", "mean"])
def test_a_classifier_hides_and_keeps(implementation: Implementation, pooling: str) -> None:
    """A mask and what is pooled are the encoder's and the pooling's own."""
    configuration, classifier = replace(PLAIN, pooling=pooling), fitted(Maker().classifier(1), PLAIN)
    identity = classifier._replace(output=Linear(np.eye(E)))
    mask, keep = KeyPadding(TOKENS != PADDING), TOKENS > 3
    options = {"configuration": configuration}
    x = implementation.call("encoder", classifier.encoder, TOKENS, **options, mask=mask)
    pooled = implementation.call("pool", x, pooling, keep)
    expected = pooled - np.log(np.exp(pooled).sum(-1, keepdims=True))
    got = implementation.call("classifier", identity, TOKENS, **options, mask=mask, keep=keep)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


# --- what is refused --------------------------------------------------------------------------------------------------

OPERATIONS = {
    "encoder_block": "EncoderBlock",
    "decoder_block": "DecoderBlock",
    "encoder": "Encoder",
    "decoder": "Decoder",
    "transformer": "Transformer",
    "classifier": "Classifier",
    "language_model": "LanguageModel",
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_other_structures_are_named(implementation: Implementation, operation: str) -> None:
    inputs = (np.ones((1, 2, E)),) * (2 if operation == "transformer" else 1)
    told = error_of(implementation.call, operation, Maker().norm(), *inputs, configuration=PLAIN)
    assert told == (TypeError, f"parameters must be a {OPERATIONS[operation]}, got Norm")


def test_a_norm_is_named(implementation: Implementation) -> None:
    wrong = decoder(norm=Maker().linear(E, E))
    told = error_of(implementation.call, "decoder", wrong, TOKENS, configuration=PLAIN)
    assert told == (TypeError, "norm must be a Norm, got Linear")


def test_token_types_need_a_table(implementation: Implementation) -> None:
    x, bare = Maker().array(2, 5, E), encoder()._replace(embedding=None)
    options = {"configuration": PLAIN, "token_types": np.zeros((2, 5), int)}
    expected = (ValueError, "token_types must be None without an embedding of tokens, got int64 array of shape [2, 5]")
    assert error_of(implementation.call, "encoder", bare, x, **options) == expected
    assert error_of(REFERENCE.encoder_vjp, bare, x, x, **options) == expected


def test_dropout_of_another_model(implementation: Implementation) -> None:
    model, dropout = fitted(Maker().transformer(1), PLAIN), TransformerDropout()
    for side in ("encoder", "decoder"):
        wrong = dropout._replace(**{side: Maker().norm()})
        told = error_of(
            lambda wrong=wrong: implementation.call(
                "transformer", model, TOKENS, TOKENS, configuration=PLAIN, dropout=wrong
            )
        )
        assert told[0] is TypeError
        assert f"dropout.{side}" in told[1]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_other_structures_are_named_by_gradients(operation: str) -> None:
    """Those of blocks and whole models, which the definition has by tape."""
    memory = (None,) if operation.startswith("decoder") else ()
    inputs = (np.ones((1, 2, E)),) * (2 if operation == "transformer" else 1)
    cotangent = np.ones((1, 2, E))
    pullback = getattr(REFERENCE, f"{operation}_vjp")
    told = error_of(pullback, Maker().norm(), *inputs, *memory, cotangent, configuration=PLAIN)
    assert told == (TypeError, f"parameters must be a {OPERATIONS[operation]}, got Norm")


@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf])
def test_special_values_raise_no_warning_in_gradients(entry: float) -> None:
    """They are legal cotangents and inputs. (Warnings are errors in these tests.)"""
    made, x = Maker(), np.full((2, 5, E), 1.0)
    x[0, ::2] = entry
    options = {"configuration": replace(PLAIN, source_padding=None, target_padding=None)}
    block, cross = fitted(made.encoder_block(), PLAIN), fitted(made.decoder_block(cross=True), PLAIN)
    up, down = encoder()._replace(embedding=None), fitted(made.decoder(1, cross=True), PLAIN)._replace(embedding=None)
    for given, cotangent in ((x, np.ones_like(x)), (np.ones_like(x), x)):
        REFERENCE.encoder_block_vjp(block, given, cotangent, **options)
        REFERENCE.decoder_block_vjp(cross, given, given, cotangent, **options)
        REFERENCE.encoder_vjp(up, given, cotangent, **options)
        REFERENCE.decoder_vjp(down, given, given, cotangent, **options)
        REFERENCE.transformer_vjp(Transformer(up, down, None), given, given, cotangent, **options)
    classifier, model = fitted(made.classifier(1), PLAIN), fitted(made.language_model(1), PLAIN)
    whole = Transformer(up, down, made.linear(E, VOCABULARY))
    REFERENCE.transformer_vjp(whole, np.ones_like(x), np.ones_like(x), x[..., :VOCABULARY], **options)
    REFERENCE.classifier_vjp(classifier, TOKENS, x[:, 0, :3], **options)
    REFERENCE.language_model_vjp(model, TOKENS, x[..., :VOCABULARY], **options)
    for wrong in (classifier, model):
        output = wrong.output._replace(bias=np.full_like(wrong.output.bias, entry))
        pullback = REFERENCE.classifier_vjp if wrong is classifier else REFERENCE.language_model_vjp
        shape = (2, 3) if wrong is classifier else (2, 5, VOCABULARY)
        pullback(wrong._replace(output=output), TOKENS, np.ones(shape), **options)


@pytest.mark.parametrize("operation", ["encoder", "decoder"])
def test_sums_over_a_batch_may_overflow(operation: str) -> None:
    """Of what all its sequences give to a row of the table of positions."""
    table = np.ones((VOCABULARY, E), np.float32)
    parameters = (Encoder if operation == "encoder" else Decoder)(Embedding(table, table), [])
    cotangent = np.full((2, 5, E), 3e38, np.float32)
    memory = () if operation == "encoder" else (None,)
    options = {"configuration": replace(PLAIN, positions="learned")}
    gradients, *others = getattr(REFERENCE, f"{operation}_vjp")(parameters, TOKENS, *memory, cotangent, **options)
    assert (gradients.embedding.positions[:5] == np.inf).all()
    assert (gradients.embedding.positions[5:] == 0).all()
    assert all(gradient is None for gradient in others)


def test_a_mean_shares_its_cotangent_by_what_is_kept() -> None:
    keep = np.array([[True, False], [True, True], [False, False]])
    x, cotangent = np.ones((3, 2, 1), np.float32), np.full((3, 1), 2, np.float32)
    gradient = REFERENCE.pool_vjp(x, "mean", keep, cotangent)
    assert gradient.dtype == np.float32
    assert np.array_equal(gradient[..., 0], [[2, 0], [1, 1], [0, 0]])


# --- loaded models ----------------------------------------------------------------------------------------------------


def attention_model(implementation: Implementation) -> tuple[Any, Any, np.ndarray]:
    """A model of one attention, its parameters in NumPy, and what it may be called with."""
    parameters = Maker().attention()
    return model_of(implementation, parameters, PLAIN), parameters, Maker(5).array(2, 5, E)


def test_an_attention_may_be_a_model(implementation: Implementation) -> None:
    """With a mask, and with dropout of its weights, as `multi_head_attention` has them."""
    model, parameters, x = attention_model(implementation)
    mask, keep = KeyPadding(TOKENS != PADDING), np.random.default_rng(6).random((2, H, 5, 5)) < 0.7
    given, numpy = implementation.convert, implementation.subject.framework.numpy
    got = numpy(model(given(x), mask=given(mask), dropout=given(Dropout(keep, 0.3))))
    options = {"num_heads": H, "mask": mask, "dropout_keep": keep, "dropout_rate": 0.3}
    assert np.array_equal(got, implementation.call("multi_head_attention", parameters, x, x, x, **options))
    told = error_of(model, given(x), dropout=0.3)
    assert told == (TypeError, "dropout must be a Dropout, got float")
    told = error_of(model, given(x[0]))
    assert told == (ValueError, "query must have shape [B, Q, E], got [5, 16]")


def test_a_model_is_itself_and_stays_so() -> None:
    model, parameters, x = attention_model(REFERENCE)
    other = REFERENCE.Model(parameters, PLAIN)
    assert np.array_equal(model(x), other(x))
    assert model != other
    assert len({model, model}) == 1
    with pytest.raises(FrozenInstanceError):
        model.configuration = PLAIN


# --- caches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "padded keys", "notebook-scratch"])
@pytest.mark.slow_where("jax_impl", unless="gpt2")
def test_a_cache_keeps_its_sizes_and_dtypes(implementation: Implementation, name: str) -> None:
    example, module = EXAMPLES[name], decoding(implementation)
    given = implementation.convert((example.parameters("float32"), example.target(), example.source()))
    parameters, tokens, source = given
    options = {"configuration": example.configuration}
    _, cache = module.start(parameters, tokens[:, :1], **options, capacity=6, source=source)
    for start, stop in ((1, 2), (2, 4), (4, 5)):
        _, cache = module.decode_step(parameters, tokens[:, start:stop], cache, **options)
        for block in cache.blocks:
            assert block.keys.shape[2] == block.values.shape[2] == 6
        real = implementation.subject.framework.numpy(cache.real)
        assert (real.shape, real.dtype) == ((BATCH, 6), np.dtype(bool))
        expected = example.target()[:, :stop] != example.configuration.target_padding
        assert np.array_equal(real, np.pad(expected, ((0, 0), (0, 6 - stop))))


def test_tokens_are_named(implementation: Implementation) -> None:
    example, module = EXAMPLES["gpt2"], decoding(implementation)
    parameters, tokens = implementation.convert((example.parameters("float32"), np.ones((2, 3), np.float32)))
    told = error_of(module.start, parameters, tokens, configuration=example.configuration, capacity=3)
    assert told == (TypeError, "tokens must have an integer dtype, got float32")


@pytest.mark.slow_where("jax_impl")
def test_models_with_fewer_parts_generate(implementation: Implementation) -> None:
    """Without padding, without norms at the end, and with a source that is embedded already: as the full pass does."""
    example = EXAMPLES["prenorm-blog"]
    plain = replace(example.configuration, source_padding=None, target_padding=None)
    whole = example.parameters("float64")
    whole = whole._replace(encoder=whole.encoder._replace(norm=None), decoder=whole.decoder._replace(norm=None))
    bare = whole._replace(encoder=whole.encoder._replace(embedding=None))
    embedded = {"parameters": bare, "source": Maker(4).array(BATCH, 5, E)}
    for options in (
        {"parameters": whole, "configuration": plain},
        {"configuration": plain} | embedded,
        {"configuration": replace(plain, source_padding=0)} | embedded,
    ):
        (got,) = generated(implementation, "greedy", example, **options, steps=3)
        (expected,) = generated(REFERENCE, "greedy", example, **options, steps=3, cached=False)
        assert np.array_equal(got, expected)
