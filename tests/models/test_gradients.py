"""Gradients of whole models: the definition's, by tape, and both autograds', over every option of a configuration.

Each example is a small model in which one option, or one part that a model may have, shows. The definition's gradient
in float64 is exact; in the dtype, the definition's and both autograds' are held to the carried bound, for every
parameter and every input that is no token. What the test would miss is shown by faults planted in the definition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

import reference_numpy
from conformance.models.error_propagation import carried_bound
from conformance.models.structures import widen_parameters
from reference_numpy.multi_head_attention import join_heads
from specification import (
    Causal,
    Configuration,
    Embedding,
    Encoder,
    KeyPadding,
    LanguageModel,
    Linear,
    MultiHeadAttention,
)
from specification.checkpoints import flatten
from specification.configuration import CHOICES, SCALES, AttentionLayer
from specification.dropout import TransformerDropout
from specification.parameters import ImageEmbedding, Transformer, mapped, rebuild
from specification.rotary import Rotary
from tests.models.test_models import CONFIGURATIONS, MODELS, inputs_of
from tests.support.helpers import IMPLEMENTATIONS, Implementation
from tests.support.small_models import (
    LONGEST,
    VOCABULARY,
    E,
    H,
    Maker,
    fitted,
    in_dtype,
    keep_masks,
    module_name,
    plant,
    without_biases,
    without_cross,
)
from tests.support.todays_models import TODAY

PORTS = IMPLEMENTATIONS[1:]


class Example(NamedTuple):
    """A function of `transformer.py`, and what it is called with, in float64.

    tied: whether the output's weight is the token table.
    """

    function: str
    parameters: Any
    inputs: tuple[Any, ...]
    configuration: Configuration
    options: dict[str, Any]
    tied: bool = False


class Arguments(NamedTuple):
    """All that may receive a gradient."""

    parameters: Any
    inputs: Any


# --- examples of one option each --------------------------------------------------------------------------------------

BASE = Configuration(
    H, positions="learned", source_padding=0, target_padding=0, target_mask="causal and real keys", empty_rows="mean"
)
ALTERNATIVES: dict[str, tuple[Any, ...]] = CHOICES | {
    "num_heads": (H, H // 2),
    "norm_eps": (1e-5, 1e-2),
    "scale": (*SCALES, 0.3),
    "softcap": (None, 2.0),
    "attention_layers": (
        (),
        (AttentionLayer(window=(1, 0)),),
        (AttentionLayer(rotary=Rotary()),),
        (AttentionLayer(rotary=Rotary(width=2, pairing="interleaved", base=10.0)),),
    ),
    "relative_furthest": (128, 3),
    "scaled_embedding": (False, True),
    "scaled_output": (False, True),
    "output_softcap": (None, 3.0),
    "source_padding": (0, None),
    "target_padding": (0, None),
    "position_padding": (None, 3),
    "patch_size": (None, 2),
}
"""By the name of the option: choices that are all tried."""
ELSEWHERE = {"experts", "latent_eps"}
"""Options of layers that these examples lack; test_pretrained.py holds their gradients to those of transformers."""
SHOWN_BY = dict.fromkeys(("target_mask", "target_padding", "scaled_output", "output_softcap"), "language_model") | {
    "pooling": "classifier"
}
"""Options that an encoder does not have."""
TOKENS = np.array([[3, 1, 4, 1, 5], [6, 5, 0, 0, 0], [0, 0, 0, 0, 0]])
LEADING = np.array([[3, 1, 4, 1, 5], [0, 6, 5, 0, 0], [0, 0, 7, 2, 0]])
TYPES = np.array([[0, 0, 1, 1, 1], [1, 0, 0, 0, 2], [0, 1, 1, 2, 0]])
KEPT = np.array([[True, True, False, True, True], [True, False, True, False, False], [False] * 5])


def maker(**shapes: Any) -> Maker:
    """Numbers that float32 holds."""
    return Maker(dtype="float32", **shapes)


def example_of(kind: str, configuration: Configuration) -> Example:
    """One block, everything in the embedding that there can be, and a last norm."""
    made = maker()
    options: dict[str, Any] = {}
    parameters: Any
    tokens = TOKENS
    embedding = made.embedding()._replace(token_types=made.array(3, E), norm=made.norm())
    if kind == "language_model":
        parameters, tokens = made.language_model(1), LEADING
    elif kind == "classifier":
        parameters, options = made.classifier(1), {"keep": KEPT}
    elif configuration.patch_size is not None:
        patches = made.linear(2 * configuration.patch_size**2, E)
        images = ImageEmbedding(patches, made.array(E), made.array(7, E))
        parameters, tokens = made.encoder(1)._replace(embedding=images), numbers(1, 3, 2, 4, 6)
    else:
        parameters, options = made.encoder(1)._replace(embedding=embedding), {"token_types": TYPES}
        parameters = parameters._replace(relative_positions=made.array(8, configuration.num_heads, spread=1.0))
    return Example(kind, widen_parameters(fitted(parameters, configuration)), (tokens,), configuration, options)


def changed(configuration: Configuration, field: str, choice: Any) -> Configuration:
    """With that choice, and what it needs beside it: positions after padding have a token that is padding."""
    if field == "position_padding":
        choice = 0 if choice is None else choice
        return replace(configuration, positions="after_padding", position_padding=choice)
    if field == "patch_size":
        return replace(configuration, patch_size=choice, positions="none")
    if field == "positions":
        return replace(configuration, positions=choice, position_padding=0 if choice == "after_padding" else None)
    return replace(configuration, **{field: choice})


def option_examples() -> Iterator[tuple[str, Callable[[], Example]]]:
    """For every choice of every option the base with that choice, and the base itself for each kind of model."""
    for kind in ("encoder", *sorted(set(SHOWN_BY.values()))):
        yield kind, partial(example_of, kind, BASE)
    for field, choices in ALTERNATIVES.items():
        kind = SHOWN_BY.get(field, "encoder")
        for choice in choices:
            if choice != getattr(BASE, field):
                yield f"{field}={choice}", partial(example_of, kind, changed(BASE, field, choice))


# --- examples of one part each ----------------------------------------------------------------------------------------

PLAIN = replace(BASE, empty_rows="zero", source_padding=None, target_padding=None, positions="none", target_mask="none")
PRE = replace(BASE, norm_order="pre", activation="gelu")


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype("float32").astype("float64")


def types_by_default() -> Example:
    """Token types that are not given are all 0."""
    return example_of("encoder", BASE)._replace(options={})


def embedded_by_itself() -> Example:
    """At an offset, and scaled; tokens that occur twice."""
    embedding = example_of("encoder", BASE).parameters.embedding
    options = {"offset": LONGEST - TOKENS.shape[1] - 1, "token_types": TYPES}
    return Example("embed", embedding, (TOKENS,), replace(BASE, scaled_embedding=True), options)


def encoder_of_embedded() -> Example:
    """No embedding and no last norm; a mask that the caller gives, with a row that may attend to nothing."""
    parameters = widen_parameters(maker().encoder(2)._replace(embedding=None, norm=None))
    mask = np.tril(np.ones((5, 5), bool), -1)
    configuration = replace(PLAIN, empty_rows="mean")
    return Example("encoder", parameters, (numbers(1, 3, 5, E),), configuration, {"mask": mask})


def decoder_of_embedded() -> Example:
    """Memory, that both blocks read, receives a gradient too."""
    parameters = widen_parameters(maker().decoder(2, cross=True)._replace(embedding=None))
    configuration = replace(PLAIN, target_mask="causal")
    options = {"memory_mask": KeyPadding(KEPT)}
    return Example("decoder", parameters, (numbers(1, 3, 5, E), numbers(2, 3, 5, E)), configuration, options)


def transformer_of_embedded() -> Example:
    """All three masks from the caller; no output layer, no last norms, no biases; pre-norm."""
    whole = without_biases(maker().transformer(1))
    up, down = (part._replace(embedding=None, norm=None) for part in (whole.encoder, whole.decoder))
    masks = {"source_mask": KeyPadding(KEPT), "target_mask": Causal(), "memory_mask": KeyPadding(KEPT)}
    inputs = numbers(1, 3, 5, E), numbers(2, 3, 5, E)
    parameters = widen_parameters(whole._replace(encoder=up, decoder=down, output=None))
    return Example("transformer", parameters, inputs, replace(PLAIN, norm_order="pre"), masks)


def beside(function: str) -> Example:
    """A mask from the caller at every place, beside what is known of padding."""
    first, second, third = np.random.default_rng(3).random((3, 3, 1, 5, 5)) < 0.7
    if function == "transformer":
        masks = {"source_mask": first, "target_mask": second, "memory_mask": third}
        return Example(function, widen_parameters(maker().transformer(1)), (TOKENS, LEADING), BASE, masks)
    made = maker().language_model(1) if function == "language_model" else maker().classifier(1)
    return Example(function, widen_parameters(made), (LEADING,), BASE, {"mask": first})


def beside_causal() -> Example:
    """A mask from the caller beside the causal one."""
    mask = np.random.default_rng(3).random((3, 1, 5, 5)) < 0.7
    example = decoder_of_embedded()
    return example._replace(options=example.options | {"mask": mask})


def of_three_blocks(function: str) -> Example:
    """So that each is at its own place, with a norm behind them."""
    if function == "language_model":
        return Example(function, widen_parameters(maker().language_model(3)), (LEADING,), BASE, {})
    whole, bare = widen_parameters(maker().encoder(3)), function == "embedded encoder"
    inputs = (numbers(1, 3, 5, E),) if bare else (TOKENS,)
    return Example("encoder", whole._replace(embedding=None) if bare else whole, inputs, BASE, {})


def separate_heads() -> Example:
    """Lists of heads, two query heads to a key head, and values of another width; the same in cross-attention."""
    parameters = maker(per_head=True, key_heads=2, value_width=6).decoder(1, cross=True)._replace(embedding=None)
    return Example("decoder", widen_parameters(parameters), (numbers(1, 3, 5, E), numbers(2, 3, 5, E)), PLAIN, {})


def tied_output() -> Example:
    """One table for the embedding and for the output, which is without bias."""
    parameters = maker().language_model(1)
    tied = widen_parameters(parameters._replace(output=parameters.output._replace(bias=None)))
    tied = tied._replace(output=tied.output._replace(weight=tied.decoder.embedding.tokens.T))
    return Example("language_model", tied, (LEADING,), PRE, {}, tied=True)


def dropped(kind: str, configuration: Configuration) -> Example:
    """A keep mask at every site; and in a model with empty rows as the mean."""
    made = maker()
    if kind == "transformer":
        parameters: Any = made.transformer(1)
        dropout: Any = TransformerDropout(keep_masks(0, 3, 5, 1), keep_masks(1, 3, 5, 1, memory=5))
        inputs: tuple[Any, ...] = (TOKENS, LEADING)
    elif kind == "language_model":
        parameters, dropout, inputs = made.language_model(1), keep_masks(2, 3, 5, 1, memory=5), (LEADING,)
        dropout = without_cross(dropout)
    else:
        parameters = made.encoder(1) if kind == "encoder" else made.classifier(1)
        dropout, inputs = keep_masks(2, 3, 5, 1), (LEADING,)
    return Example(
        kind, widen_parameters(fitted(parameters, configuration)), inputs, configuration, {"dropout": dropout}
    )


def equal_maxima(positions: int) -> Example:
    """Rows of small integers right into the pooling: nearly every maximum is reached more than once."""
    table = np.random.default_rng(0).integers(-1, 2, (VOCABULARY, E)).astype(float)
    parameters = widen_parameters(maker().classifier(0))._replace(encoder=Encoder(Embedding(table), []))
    tokens = np.array([[3, 1, 4, 1, 5], [2, 8, 9, 10, 7], [6, 5, 3, 5, 8]])
    options = {"keep": (KEPT | [[False], [True], [False]])[:, :positions]}
    return Example("classifier", parameters, (tokens[:, :positions],), replace(PLAIN, pooling="max"), options)


FUNCTIONS = {Encoder: "encoder", LanguageModel: "language_model", Transformer: "transformer"}


def whole(kind: str, order: str) -> Example:
    """A model of two blocks."""
    configuration = CONFIGURATIONS[order]
    parameters = widen_parameters(fitted(MODELS[kind](maker()), configuration))
    return Example(kind, parameters, inputs_of(parameters), configuration, {})


def of_today(name: str) -> Example:
    """A model in the manner of those that people use today, and the mask of its padding."""
    found = TODAY[name]()
    options = {} if found.key_padding is None else {"mask": KeyPadding(found.key_padding)}
    parameters, inputs = found.parameters("float64"), in_dtype(found.inputs, "float64")
    return Example(FUNCTIONS[type(parameters)], parameters, inputs, found.configuration, options)


PARTS: dict[str, Callable[[], Example]] = {
    "token types by default": types_by_default,
    "embedding alone": embedded_by_itself,
    "embedded encoder": encoder_of_embedded,
    "embedded decoder": decoder_of_embedded,
    "embedded transformer": transformer_of_embedded,
    "transformer": lambda: Example(
        "transformer", widen_parameters(maker().transformer(1)), (TOKENS, LEADING), BASE, {}
    ),
    "masks beside padding, transformer": lambda: beside("transformer"),
    "masks beside padding, language model": lambda: beside("language_model"),
    "masks beside padding, classifier": lambda: beside("classifier"),
    "mask beside causal": beside_causal,
    "three blocks, encoder": lambda: of_three_blocks("encoder"),
    "three blocks, embedded encoder": lambda: of_three_blocks("embedded encoder"),
    "three blocks, language model": lambda: of_three_blocks("language_model"),
    "separate heads": separate_heads,
    "tied output": tied_output,
    "dropout, post-norm": lambda: dropped("transformer", BASE),
    "dropout, pre-norm": lambda: dropped("transformer", PRE),
    "dropout, language model": lambda: dropped("language_model", PRE),
    "dropout, classifier": lambda: dropped("classifier", BASE),
    "dropout, encoder": lambda: dropped("encoder", BASE),
    "dropout, norms around": lambda: dropped("language_model", replace(PRE, norm_order="around")),
    "dropout, norms after": lambda: dropped("language_model", replace(PRE, norm_order="after")),
    "dropout, parallel sublayers": lambda: dropped("language_model", replace(PRE, norm_order="parallel")),
    "pooling everything": lambda: example_of("classifier", replace(BASE, pooling="max"))._replace(options={}),
    "equal maxima": lambda: equal_maxima(5),
    "nothing to pool": lambda: equal_maxima(0),
} | {f"today, {name}": partial(of_today, name) for name in TODAY}
EXAMPLES = dict(option_examples()) | PARTS
WHOLE = {f"whole, {kind}, {order}": partial(whole, kind, order) for kind in MODELS for order in CONFIGURATIONS}


# --- gradients --------------------------------------------------------------------------------------------------------


def joined(value: Any) -> Any:
    """Gradients of separate heads as the definition gives them, side by side."""
    if isinstance(value, MultiHeadAttention):
        return MultiHeadAttention(*map(join_heads, value[:3]), *value[3:])
    if isinstance(value, list | tuple):
        return rebuild(value, [joined(part) for part in value])
    return value


def untied(example: Example, parameters: Any) -> Any:
    """With the output's own weight where it is the turned table of the tokens."""
    if not example.tied:
        return parameters
    return parameters._replace(output=Linear(parameters.decoder.embedding.tokens.T))


def arguments_of(example: Example, dtype: str) -> Arguments:
    """A tied weight is there once."""
    parameters = example.parameters._replace(output=None) if example.tied else example.parameters
    return in_dtype(Arguments(parameters, example.inputs), dtype)


def result_of(example: Example, parameters: Any, inputs: Any) -> np.ndarray:
    """Of the definition. parameters: untied."""
    function = getattr(reference_numpy, example.function)
    return function(parameters, *inputs, configuration=example.configuration, **example.options)


def cotangent_of(example: Example) -> np.ndarray:
    return numbers(7, *result_of(example, example.parameters, example.inputs).shape)


def by_hand(functions: Any, example: Example, parameters: Any, inputs: Any, cotangent: np.ndarray) -> Arguments:
    """The definition's gradients. functions: the definition, or its copy; parameters: untied."""
    pullback = getattr(functions, f"{example.function}_vjp")
    found = pullback(parameters, *inputs, cotangent, configuration=example.configuration, **example.options)
    gradients, given = (found[0], tuple(found[1:])) if hasattr(found, "parameters") else (found, ())
    if example.tied:  # both places of the table receive something
        embedding = gradients.decoder.embedding
        embedding = embedding._replace(tokens=functions.add(embedding.tokens, gradients.output.weight.T))
        gradients = LanguageModel(gradients.decoder._replace(embedding=embedding), None)
    return Arguments(gradients, given)


def definition(example: Example, dtype: str) -> dict[str, np.ndarray]:
    functions = SimpleNamespace(**vars(reference_numpy), add=reference_numpy.blocks.add)
    parameters, inputs = arguments_of(example, dtype)
    cotangent = cotangent_of(example).astype(dtype)
    return flatten(by_hand(functions, example, untied(example, parameters), inputs, cotangent))


def autograd(
    implementation: Implementation, example: Example, dtype: str, *, jit: bool = False
) -> dict[str, np.ndarray]:
    """jit: whether JAX compiles, which takes minutes for all examples."""
    framework, given = implementation.subject.framework, arguments_of(example, dtype)
    cotangent, names = cotangent_of(example).astype(dtype), list(flatten(given))
    called = getattr(implementation, example.function)

    def function(arrays: dict[str, Any]) -> dict[str, Any]:
        following = iter(names)
        parameters, inputs = mapped(lambda _: arrays[next(following)], given)
        options = implementation.convert(example.options)
        result = called(untied(example, parameters), *inputs, configuration=example.configuration, **options)
        return {"output": result}

    with framework.context(), jax.disable_jit(not jit):
        arrays = implementation.convert(flatten(given))
        sought = [name for name, array in flatten(given).items() if array.dtype.kind == "f"]
        _, found = framework.differentiate(function, arrays, sought, {"output": framework.array(cotangent)})
        gradients = {name: framework.numpy(array) for name, array in found.items()}
    following = iter(names)
    return flatten(joined(mapped(lambda _: gradients.get(next(following)), given)))


@cache
def expected(name: str, dtype: str) -> tuple[Example, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The example, its gradients exactly, and their bounds."""
    example = (EXAMPLES | WHOLE)[name]()
    given, cotangent = arguments_of(example, "float64"), cotangent_of(example)
    parameters = untied(example, given.parameters)

    def run(functions: Any) -> Any:
        return by_hand(functions, example, parameters, given.inputs, cotangent)

    exact, bounds = map(flatten, carried_bound(run, parameters, dtype))
    return example, exact, bounds


def beyond(got: dict[str, np.ndarray], exact: dict[str, np.ndarray], bounds: dict[str, np.ndarray]) -> list[str]:
    """Where a gradient is missing, or surplus, or of another shape, or beyond its bound; NaN belongs where it is."""
    wrong = sorted(got.keys() ^ exact.keys())
    for name in got.keys() & exact.keys():
        fits = got[name].shape == exact[name].shape and (
            (np.abs(got[name] - exact[name]) <= bounds[name]) | (np.isnan(got[name]) & np.isnan(exact[name]))
        )
        wrong += [] if np.all(fits) else [name]
    return wrong


@pytest.fixture(params=EXAMPLES, scope="module")
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.slow
@pytest.mark.rule("TRF-1", "BLK-1", "BLK-2", "BLK-3", "NORM-8")
@pytest.mark.parametrize("name", EXAMPLES | WHOLE, indirect=True)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_gradient(name: str, dtype: str) -> None:
    example, exact, bounds = expected(name, dtype)
    enough = all if name.startswith("today") else any
    assert enough(np.any(gradient) for gradient in exact.values()) or name == "nothing to pool"
    answers = {"reference_numpy": definition(example, dtype)}
    answers |= {port.package: autograd(port, example, dtype, jit=name in WHOLE) for port in PORTS}
    wrong = {package: found for package, got in answers.items() if (found := beyond(got, exact, bounds))}
    assert wrong == {}
    for got in answers.values():
        assert {str(gradient.dtype) for gradient in got.values()} == {dtype}


KINKS = ("empty_rows=nan", "equal maxima")
"""Examples without a slope along every direction."""
SHORT = 2.0 ** -np.arange(18, 23)
"""Steps in which no ReLU turns."""


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in KINKS], indirect=True)
def test_slope_along_one_direction(name: str) -> None:
    """Everything that may receive a gradient is moved at once: rough, but done in a hundredth of the time.

    Five differences tell by how much they are off: the definition's gradient may be off by eight times as much.
    """
    example = EXAMPLES[name]()
    given, cotangent, generator = arguments_of(example, "float64"), cotangent_of(example), np.random.default_rng(11)
    direction = mapped(lambda array: generator.normal(size=array.shape) * (array.dtype.kind == "f"), given)

    def moved(step: float) -> float:
        parameters, inputs = mapped(lambda array, way: array + (step * way).astype(array.dtype), given, direction)
        return np.sum(cotangent * result_of(example, untied(example, parameters), inputs))

    differences = [(moved(step) - moved(-step)) / (2 * step) for step in SHORT]
    ways, gradients = flatten(joined(direction)), definition(example, "float64")
    slope = sum(np.sum(gradients[name] * ways[name]) for name in gradients)
    assert abs(slope - np.median(differences)) <= 8 * np.ptp(differences)


# --- what is covered --------------------------------------------------------------------------------------------------


def test_every_option_has_an_example() -> None:
    """A new option, or a new choice of one, needs an example that shows it."""
    assert set(ALTERNATIVES) | ELSEWHERE == {field.name for field in fields(Configuration)}
    tried = {
        (field.name, getattr(make().configuration, field.name))
        for make in EXAMPLES.values()
        for field in fields(Configuration)
    }
    assert {(field, choice) for field, choices in ALTERNATIVES.items() for choice in choices} <= tried
    assert all(len(set(choices)) > 1 for choices in ALTERNATIVES.values())


@pytest.mark.parametrize("name", [name for name, _ in option_examples() if "=" in name], indirect=True)
def test_every_option_shows(name: str) -> None:
    """The same model with the base's choice has other gradients."""
    example, exact, bounds = expected(name, "float32")
    field = name.split("=")[0]
    base = example_of(example.function, changed(example.configuration, field, getattr(BASE, field)))
    others = definition(base, "float64")
    assert set(beyond(others, exact, bounds)) & others.keys() & exact.keys()


# --- planted faults ---------------------------------------------------------------------------------------------------


class Wrong(NamedTuple):
    """In a module of the definition `old`, which occurs once, becomes `new`; that example finds it.

    shows: the option, or the part of a model, that is taken wrong.
    """

    shows: str
    example: str
    module: str
    old: str
    new: str


BY_HEADS, INTERLEAVED = "num_heads, width // num_heads)", "width // num_heads, num_heads).swapaxes(2, 3)"
SQUARES, TURNED = "transpose(0, 3, 1, 4, 2, 5)", "transpose(0, 3, 1, 5, 2, 4)"
PADDED = "padding_mask(tokens, configuration.target_padding)"
REAL_QUERIES = "real_queries(tokens, configuration.target_padding, tokens.shape[1])"
OF_TARGET = "target_mask(x, configuration)"
OF_SOURCE = "padding_mask(x, configuration.source_padding)"
OF_MEMORY = "padding_mask(source, configuration.source_padding)"
POSITIONS = '"shared" if configuration.positions == "sinusoidal" else "doubled"'
COUNTED = "np.cumsum(real, axis=1) * real + padding"
NORM_EPS = "return layer_norm(x, parameters.weight, parameters.bias, eps=configuration.norm_eps)"
RMS_NORM = "return rms_norm(x, parameters.weight, eps=configuration.norm_eps, plus_one=plus_one)"
LAST_NORM = "**options)\n    return normalize_if(parameters.norm, x, configuration)"
ENCODER_NORM = f"x = encoder_block(block, x, layer=layer, rotation=rotation, dropout=dropped, {LAST_NORM}"
DECODER_NORM = f"x = decoder_block(block, x, memory, layer=layer, rotation=rotation, dropout=dropped, {LAST_NORM}"
EMBEDDING_NORM = "dtype=dtype_name(x)))\n    return normalize_if(parameters.norm, x, configuration)"
DROPPED = "x = drop(x, dropout.embedding)\n    "
INTO_ENCODER = 'options: Any = {"configuration": configuration, "mask": mask}'
INTO_DECODER = 'options: Any = {"configuration": configuration, "mask": mask, "memory_mask": memory_mask}'
POST_SUM, POST_NORM = (
    "add(x, drop(function(x), dropout.output))",
    "drop(normalize(norm, x, configuration), dropout.norm)",
)
AFTER_SUM = "add(x, drop(normalize(norm, output, configuration), dropout.norm))"
PRE_SUM = "add(x, normalize_if(output_norm, output, configuration))"
PARALLEL = "sublayer.function(drop(given, sublayer.dropout.norm))"
WEIGHTS = "attention_options(join_heads(first).weight.shape[0], mask, weights_dropout, configuration)"
INNER = "keep, rate = (None, 0.0) if inner_dropout is None else inner_dropout"
FILLED = "fill_empty_rows(weights, allowed, empty_rows)"
FIRST = "where = first_largest(widen(x), keep)"
LAST = "where = x.shape[1] - 1 - first_largest(widen(x)[:, ::-1], keep[:, ::-1])"
BIAS = "bias = None if parameters.bias is None else rows.sum(axis=0).astype(parameters.bias.dtype)"
RECEIVED = "mapped(accumulate, received[key], gradient) if key in received else gradient"

WRONG = (
    Wrong("num_heads", "num_heads=2", "multi_head_attention", BY_HEADS, INTERLEAVED),
    Wrong("norm_order", "norm_order=pre", "blocks", PRE_SUM, "normalize_if(output_norm, output, configuration)"),
    Wrong("norm_order", "norm_order=around", "blocks", PRE_SUM, "add(x, output)"),
    Wrong("norm_order", "encoder", "blocks", POST_SUM, "drop(function(x), dropout.output)"),
    Wrong("norm_order", "norm_order=after", "blocks", AFTER_SUM, AFTER_SUM[len("add(x, ") : -1]),
    Wrong("norm_order", "norm_order=parallel", "blocks", "normalize(position_wise.norm", "normalize(attention.norm"),
    Wrong("norm_order", "norm_order=parallel", "blocks", "add(x, add(*outputs))", "add(*outputs)"),
    Wrong("norm_order", "today, gpt_j", "blocks", "add(*outputs)", "outputs[0]"),
    Wrong("norm", "norm=rms_norm", "blocks", RMS_NORM, NORM_EPS.replace("parameters.bias", "None")),
    Wrong("norm", "norm=standard_deviation_norm", "blocks", "return standard_deviation_norm(", "return layer_norm("),
    Wrong("norm", "norm=rms_norm_plus_one", "blocks", 'configuration.norm == "rms_norm_plus_one"', "False"),
    Wrong("norm_eps", "norm_eps=0.01", "blocks", NORM_EPS, NORM_EPS.replace("configuration.norm_eps", "1e-5")),
    Wrong("activation", "activation=gelu", "blocks", ": configuration.activation", ': "gelu_tanh"'),
    Wrong("activation", "activation=gelu_tanh", "blocks", ": configuration.activation", ': "gelu"'),
    Wrong("activation", "activation=silu", "blocks", ": configuration.activation", ': "gelu"'),
    Wrong("activation", "empty_rows=nan", "feed_forward_vjp", '& (activation == "relu")', "& False"),
    Wrong("scale", "scale=model_width", "specification.blocks", "else 1 / math.sqrt(width)", "else None"),
    Wrong("scale", "scale=0.3", "specification.blocks", "if isinstance(scale, str):", "if True:"),
    Wrong("softcap", "softcap=2.0", "specification.blocks", '"softcap": configuration.softcap', '"softcap": None'),
    Wrong("empty_rows", "encoder", "attention_vjp", FILLED, "weights, allowed"),
    Wrong("empty_rows", "empty_rows=zero", "attention_steps", 'if empty_rows == "zero":', 'if empty_rows == "never":'),
    Wrong("empty_rows", "empty_rows=nan", "attention_vjp", FILLED, "weights, allowed"),
    Wrong("attention_layers", "today, mistral", "blocks", "windowed(mask, layer), weights", "mask, weights"),
    Wrong("attention_layers", "today, llama", "rotary_vjp", "rotate(cotangent, -sine", "rotate(cotangent, sine"),
    Wrong("sinks", "today, gpt_oss", "attention_vjp", "sinks_gradient += ", "sinks_gradient += 0 * "),
    Wrong(
        "norms of queries", "today, qwen3", "blocks",
        "normalize(norm, split_heads(x, num_heads), configuration)", "split_heads(x, num_heads)",
    ),
    Wrong(
        "norms of queries", "today, olmo2", "blocks",
        "split_heads(normalize(norm, x, configuration), num_heads)", "split_heads(x, num_heads)",
    ),
    Wrong("positions", "encoder", "blocks_vjp", "np.sum(widen(cotangent), axis=axes)", "widen(cotangent)[0]"),
    Wrong("positions", "positions=doubled", "transformer", POSITIONS, '"shared"'),
    Wrong("positions", "positions=sinusoidal", "transformer", POSITIONS, '"doubled"'),
    Wrong("positions", "positions=none", "transformer", 'elif configuration.positions != "none":', "else:"),
    Wrong("positions", "embedding alone", "transformer", "positions, T, offset=offset)", "positions, T)"),
    Wrong("positions", "embedding alone", "positions_vjp", "gradient[offset : offset + length]", "gradient[:length]"),
    Wrong(
        "positions", "positions=after_padding", "transformer",
        "embedding(parameters.positions, positions)", "embedding(parameters.positions, 0 * positions)",
    ),
    Wrong("positions", "positions=after_padding", "transformer", COUNTED, COUNTED.replace(" * real", "")),
    Wrong("position_padding", "position_padding=3", "transformer", COUNTED, COUNTED.replace(" + padding", "")),
    Wrong("position_padding", "position_padding=3", "transformer", COUNTED, COUNTED.replace("real", "(tokens != 0)")),
    Wrong("relative_furthest", "relative_furthest=3", "transformer", "configuration.relative_furthest", "128"),
    Wrong("relative positions", "today, t5", "tape", RECEIVED, "gradient"),
    Wrong("scaled_embedding", "scaled_embedding=True", "embedding_vjp", "gradient * math", "gradient / math"),
    Wrong("source_padding", "encoder", "transformer", OF_SOURCE, "None"),
    Wrong("source_padding", "transformer", "transformer", OF_MEMORY, "None"),
    Wrong("target_padding", "language_model", "transformer", f"Causal() & {PADDED}", "Causal()"),
    Wrong("target_mask", "target_mask=causal and real queries", "transformer", REAL_QUERIES, PADDED),
    Wrong("target_mask", "target_mask=causal", "transformer", f"both(mask, {OF_TARGET})", "mask"),
    Wrong("target_mask", "target_mask=none", "transformer", 'if configuration.target_mask == "none":', "if False:"),
    Wrong("target_mask", "embedded decoder", "transformer", "both(mask, Causal())", "mask"),
    *(
        Wrong("masks beside padding", f"masks beside padding, {model}", "transformer", f"both({mask}, {known})", left)
        for model, mask, known in (
            ("classifier", "mask", OF_SOURCE),
            ("transformer", "memory_mask", OF_MEMORY),
            ("language model", "mask", OF_TARGET),
        )
        for left in (mask, known)
    ),
    *(
        Wrong("masks beside padding", "mask beside causal", "transformer", "both(mask, Causal())", left)
        for left in ("mask", "Causal()")
    ),
    Wrong("masks", "embedded transformer", "transformer", "mask=source_mask", "mask=None"),
    Wrong("masks", "embedded transformer", "transformer", "mask=target_mask", "mask=None"),
    Wrong("masks", "embedded encoder", "transformer", INTO_ENCODER, INTO_ENCODER.replace(', "mask": mask', "")),
    Wrong("pooling", "classifier", "transformer_vjp", "np.maximum(keep.sum(axis=1), 1)[:, None, None]", "x.shape[1]"),
    Wrong("pooling", "classifier", "transformer_vjp", "keep[..., None], wide /", "keep[..., None] | True, wide /"),
    Wrong("pooling", "pooling=max", "transformer_vjp", "chosen & keep[..., None]", "chosen"),
    Wrong("pooling", "pooling=max", "transformer_vjp", FIRST, FIRST.replace("keep", "keep | True")),
    Wrong("pooling", "pooling everything", "transformer_vjp", "chosen & keep[..., None]", "keep[..., None]"),
    Wrong("equal maxima", "equal maxima", "transformer_vjp", FIRST, LAST),
    Wrong("log-softmax", "classifier", "transformer_vjp", "wide - weights * np.sum(wide, axis=-1, keepdims=True)",
          "wide - weights"),
    Wrong("token types", "encoder", "transformer", "is None else token_types)", "is None else 0 * token_types)"),
    Wrong("token types", "token types by default", "transformer", "np.zeros_like(tokens)", "np.ones_like(tokens)"),
    Wrong("norm of the embedding", "positions=doubled", "transformer", EMBEDDING_NORM,
          EMBEDDING_NORM.replace("normalize_if(parameters.norm, x, configuration)", "x")),
    Wrong("last norm", "encoder", "transformer", ENCODER_NORM,
          ENCODER_NORM.replace("normalize_if(parameters.norm, x, configuration)", "x")),
    Wrong("last norm", "language_model", "transformer", DECODER_NORM,
          DECODER_NORM.replace("normalize_if(parameters.norm, x, configuration)", "x")),
    Wrong("separate heads", "separate heads", "attention_steps_vjp", "K, W).sum(axis=2)", "K, W)[:, :, 0]"),
    Wrong("separate heads", "separate heads", "multi_head_attention", "head.weight for head in projections]",
          "head.weight for head in projections[::-1]]"),
    Wrong("no biases", "embedded transformer", "multi_head_attention_vjp", BIAS,
          "bias = rows.sum(axis=0).astype(x.dtype)"),
    Wrong("tied output", "tied output", "multi_head_attention_vjp", "(flat.T @ rows)", "(0 * flat.T @ rows)"),
    Wrong("memory", "embedded decoder", "tape", RECEIVED, "gradient"),
    Wrong("memory", "embedded decoder", "blocks", "linear(join_heads(parameters.value), memory)",
          "linear(join_heads(parameters.value), 0 * memory)"),
    Wrong("inputs", "embedded encoder", "tape", RECEIVED, "gradient"),
    Wrong("scaled_output", "scaled_output=True", "transformer_vjp", "return shrink(cotangent)", "return cotangent"),
    Wrong("output_softcap", "output_softcap=3.0", "transformer_vjp", "float(cap)) ** 2)", "float(cap)))"),
    Wrong("patch_size", "patch_size=2", "transformer_vjp", SQUARES, TURNED),
    Wrong("patch_size", "patch_size=2", "transformer_vjp", "cotangent[:, 0]", "cotangent[:, 1]"),
    Wrong("patch_size", "patch_size=2", "transformer_vjp", "cotangent[:, 1:]", "cotangent[:, :-1]"),
    Wrong("dropout", "dropout, pre-norm", "transformer", DROPPED + INTO_ENCODER, INTO_ENCODER),
    Wrong("dropout", "dropout, language model", "transformer", DROPPED + INTO_DECODER, INTO_DECODER),
    Wrong("dropout", "dropout, pre-norm", "blocks_vjp", "return drop(cotangent, dropout)", "return cotangent"),
    Wrong("dropout", "dropout, classifier", "blocks", WEIGHTS, WEIGHTS.replace("weights_dropout", "None")),
    Wrong("dropout", "dropout, classifier", "blocks", INNER, "keep, rate = None, 0.0"),
    Wrong("dropout", "dropout, post-norm", "blocks", POST_SUM, "add(x, function(x))"),
    Wrong("dropout", "dropout, post-norm", "blocks", POST_NORM, "normalize(norm, x, configuration)"),
    Wrong("dropout", "dropout, pre-norm", "blocks", "drop(normalize_if(norm, x, configuration), dropout.norm)",
          "normalize_if(norm, x, configuration)"),
    *(
        Wrong("dropout", example, "blocks", "drop(function(normalized), dropout.output)", "function(normalized)")
        for example in ("dropout, pre-norm", "dropout, norms around")
    ),
    Wrong("dropout", "dropout, norms after", "blocks", AFTER_SUM, "add(x, normalize(norm, output, configuration))"),
    Wrong("dropout", "dropout, norms after", "blocks", "output = drop(function(x), dropout.output)",
          "output = function(x)"),
    Wrong("dropout", "dropout, parallel sublayers", "blocks", "drop(given, sublayer.dropout.norm)", "given"),
    Wrong("dropout", "dropout, parallel sublayers", "blocks", f"drop({PARALLEL}, sublayer.dropout.output)", PARALLEL),
)  # fmt: skip


@pytest.mark.slow_where("dropout, pre")
@pytest.mark.slow_where("today")
@pytest.mark.slow_where("dropout, norms")
@pytest.mark.slow_where("dropout, parallel")
def test_planted_faults_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example, exact, bounds = expected(name, "float32")
    assert beyond(definition(example, "float32"), exact, bounds) == []
    for wrong in [wrong for wrong in WRONG if wrong.example == name]:
        with monkeypatch.context() as patch:
            plant(module_name("reference_numpy", wrong.module), wrong.old, wrong.new, patch)
            assert beyond(definition(example, "float32"), exact, bounds), wrong


def test_every_option_has_a_fault() -> None:
    assert set(ALTERNATIVES) <= {wrong.shows for wrong in WRONG}
    assert {wrong.example for wrong in WRONG} <= EXAMPLES.keys()
