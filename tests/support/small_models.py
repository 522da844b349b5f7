"""Small models of random numbers that can generate, and small sequences for them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from conformance.models.error_propagation import SAMPLES, carried_bound
from conformance.models.structures import widen_parameters
from reference_numpy import tape
from specification import (
    Classifier,
    Configuration,
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    LanguageModel,
    Linear,
    MultiHeadAttention,
    Norm,
    Transformer,
)
from specification.dropout import DecoderBlockDropout, Dropout, EncoderBlockDropout, StackDropout, SublayerDropout
from specification.parameters import mapped
from tests.support.helpers import Implementation

E, H, F, VOCABULARY, LONGEST, BATCH, LENGTH = 16, 4, 24, 11, 24, 3, 7


class Maker:
    """Parameters of random numbers, far from what they begin with in training."""

    def __init__(
        self,
        seed: int = 0,
        dtype: str = "float64",
        *,
        key_heads: int = H,
        value_width: int = E // H,
        per_head: bool = False,
        vocabulary: int = VOCABULARY,
    ) -> None:
        self.generator, self.dtype, self.vocabulary = np.random.default_rng(seed), dtype, vocabulary
        self.key_heads, self.value_width, self.per_head = key_heads, value_width, per_head

    def array(self, *shape: int, mean: float = 0.0, spread: float = 0.4) -> np.ndarray:
        return self.generator.normal(mean, spread, shape).astype(self.dtype)

    def linear(self, inner: int, outer: int) -> Linear:
        return Linear(self.array(inner, outer), self.array(outer))

    def norm(self) -> Norm:
        return Norm(self.array(E, mean=1.0), self.array(E))

    def attention(self) -> MultiHeadAttention:
        G, D, V = self.key_heads, E // H, self.value_width
        fused = [self.linear(E, columns) for columns in (H * D, G * D, G * V)]
        output = self.linear(H * V, E)
        if not self.per_head:
            return MultiHeadAttention(*fused, output)
        counts = zip(fused, (H, G, G), strict=True)
        heads = [[Linear(*parts) for parts in zip(*(np.split(a, n, -1) for a in p), strict=True)] for p, n in counts]
        return MultiHeadAttention(*heads, output)

    def feed_forward(self) -> FeedForward:
        return FeedForward(self.linear(E, F), self.linear(F, E))

    def embedding(self) -> Embedding:
        return Embedding(self.array(self.vocabulary, E, spread=1.0), self.array(LONGEST, E, spread=1.0))

    def encoder_block(self) -> EncoderBlock:
        return EncoderBlock(self.attention(), self.norm(), self.feed_forward(), self.norm())

    def decoder_block(self, cross: bool) -> DecoderBlock:
        middle = (self.attention(), self.norm()) if cross else (None, None)
        return DecoderBlock(self.attention(), self.norm(), *middle, self.feed_forward(), self.norm())

    def encoder(self, depth: int) -> Encoder:
        return Encoder(self.embedding(), [self.encoder_block() for _ in range(depth)], self.norm())

    def decoder(self, depth: int, cross: bool) -> Decoder:
        return Decoder(self.embedding(), [self.decoder_block(cross) for _ in range(depth)], self.norm())

    def language_model(self, depth: int = 2) -> LanguageModel:
        return LanguageModel(self.decoder(depth, cross=False), self.linear(E, self.vocabulary))

    def classifier(self, depth: int = 2) -> Classifier:
        return Classifier(self.encoder(depth), self.linear(E, 3))

    def transformer(self, depth: int = 2) -> Transformer:
        return Transformer(self.encoder(depth), self.decoder(depth, cross=True), self.linear(E, self.vocabulary))


class Example(NamedTuple):
    """A configuration, and parameters and tokens that show what is particular to it.

    padded: (row, position) pairs of the target that hold padding. shapes: keywords of `Maker`.
    """

    configuration: Configuration
    encoder: bool = False
    padded: tuple[tuple[int, int], ...] = ()
    shapes: Mapping[str, Any] = MappingProxyType({})

    def parameters(self, dtype: str) -> Any:
        maker = Maker(dtype=dtype, **self.shapes)
        made = maker.transformer() if self.encoder else maker.language_model()
        return fitted(made, self.configuration)

    def source(self) -> np.ndarray | None:
        """Padding at the end of the first row; the last row is nothing else, so nothing can be attended to there."""
        if not self.encoder:
            return None
        source = np.random.default_rng(2).integers(1, VOCABULARY, (BATCH, 5))
        source[0, 3:], source[-1] = 0, 0
        return source

    def target(self) -> np.ndarray:
        target = np.random.default_rng(3).integers(1, VOCABULARY, (BATCH, LENGTH))
        for place in self.padded:
            target[place] = 0
        return target


def fitted(value: Any, configuration: Configuration) -> Any:
    """Without biases in norms that have none, without tables of positions that are not read, with norms around."""
    if isinstance(value, Norm):
        return Norm(value.weight) if configuration.norm.startswith("rms_norm") else value
    if isinstance(value, Embedding) and configuration.positions not in ("learned", "after_padding"):
        return value._replace(positions=None)
    if isinstance(value, list | tuple):
        parts = [fitted(part, configuration) for part in value]
        value = type(value)(*parts) if hasattr(value, "_fields") else parts
    if isinstance(value, EncoderBlock | DecoderBlock) and configuration.norm_order == "around":
        outputs = [name for name in value._fields if name.endswith("output_norm")]
        norms = {name: getattr(value, name.replace("_output", "")) for name in outputs}
        return value._replace(**{name: mapped(lambda array: array[::-1].copy(), norm) for name, norm in norms.items()})
    return value


def without_biases(value: Any) -> Any:
    """The structure without the biases of its projections and norms."""
    if isinstance(value, Linear | Norm):
        return value._replace(bias=None)
    if isinstance(value, list | tuple):
        parts = [without_biases(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    return value


def without_cross(dropout: StackDropout) -> StackDropout:
    """For a decoder whose blocks attend to no memory."""
    blocks = [block._replace(cross_attention=SublayerDropout()) for block in dropout.blocks]
    return dropout._replace(blocks=blocks)


def keep_masks(seed: int, batch: int, length: int, depth: int, memory: int | None = None) -> StackDropout:
    """A keep mask at every site of an encoder, or of a decoder, whose memory is that long."""
    generator = np.random.default_rng(seed)

    def keep(*shape: int) -> Dropout:
        return Dropout(generator.random((batch, *shape)) < 0.7, 0.3)

    def sublayer(*inner: int) -> SublayerDropout:
        return SublayerDropout(keep(*inner), keep(length, E), keep(length, E))

    def block() -> EncoderBlockDropout | DecoderBlockDropout:
        own, forward = sublayer(H, length, length), sublayer(length, F)
        if memory is None:
            return EncoderBlockDropout(own, forward)
        return DecoderBlockDropout(own, sublayer(H, length, memory), forward)

    return StackDropout(keep(length, E), [block() for _ in range(depth)])


INSIDE, LEADING = ((0, 2), (0, 5), (2, 3)), ((1, 0), (1, 1), (2, 4))
NOTEBOOK = Configuration(
    H, scale="model_width", empty_rows="mean", positions="learned", source_padding=0, target_padding=0
)
BLOG = Configuration(
    H, norm_order="pre", norm="standard_deviation_norm", norm_eps=1e-6, empty_rows="mean", positions="doubled",
    scaled_embedding=True, source_padding=0, target_padding=0, target_mask="causal and real keys",
)  # fmt: skip
DAWN = Configuration(
    H, empty_rows="mean", source_padding=0, target_padding=0, target_mask="causal and real queries"
)  # fmt: skip
GPT2 = Configuration(H, norm_order="pre", activation="gelu_tanh", positions="learned")
KEYS = Configuration(H, norm_order="pre", target_padding=0, target_mask="causal and real keys")

SHARED = Configuration(H, norm="rms_norm", norm_order="pre", activation="gelu", target_mask="none")

EXAMPLES = {
    "notebook-scratch": Example(NOTEBOOK, encoder=True, padded=INSIDE),
    "prenorm-blog": Example(BLOG, encoder=True, padded=INSIDE),
    "dawn": Example(DAWN, encoder=True),
    "gpt2": Example(GPT2),
    "padded queries": Example(replace(DAWN, empty_rows="zero"), encoder=True, padded=INSIDE + LEADING),
    "padded keys": Example(KEYS, padded=INSIDE + LEADING),
    "lists of heads": Example(SHARED, shapes={"per_head": True, "key_heads": 2, "value_width": 6}),
}


def decoding(implementation: Implementation) -> ModuleType:
    return importlib.import_module(f"{implementation.package}.decoding")


def generation(implementation: Implementation) -> ModuleType:
    return importlib.import_module(f"{implementation.package}.generation")


# --- exact results ----------------------------------------------------------------------------------------------------


def in_dtype(value: Any, dtype: Any) -> Any:
    """The structure with its floating arrays in that dtype."""
    return mapped(lambda array: array.astype(dtype) if array.dtype.kind == "f" else array, value)


def exact_and_bound(
    parameters: Any, configuration: Configuration, inputs: tuple[Any, ...], dtype: str = "float32", *,
    narrow: frozenset[str] = frozenset(), samples: int = SAMPLES, **options: Any,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """What the definition's model gives in float64, and the bound for an implementation in that dtype."""
    wide, inputs = widen_parameters(parameters), in_dtype(inputs, "float64")

    def run(functions: Any) -> Any:
        return functions.MODELS[type(wide)](wide, *inputs, configuration=configuration, **options)

    return carried_bound(run, wide, dtype, narrow=narrow, samples=samples)


def model_of(implementation: Implementation, parameters: Any, configuration: Configuration) -> Any:
    """A package's model with these parameters, of NumPy arrays."""
    return implementation.Model(implementation.convert(parameters), configuration)


def result_of(implementation: Implementation, model: Any, inputs: tuple[Any, ...], **options: Any) -> np.ndarray:
    """What a package's model gives, from NumPy arrays and as one."""
    framework, convert = implementation.subject.framework, implementation.convert
    with framework.context():
        return framework.numpy(model(*convert(inputs), **convert(options)))


def assert_within(got: np.ndarray, exact: np.ndarray, bound: np.ndarray, dtype: str = "float32") -> None:
    assert str(got.dtype) == dtype
    assert got.shape == exact.shape
    assert (np.abs(got - exact) <= bound).all()


# --- generating -------------------------------------------------------------------------------------------------------

STEPS = 6
END = 4
UNIFORMS = np.random.default_rng(5).random((BATCH, STEPS))
METHODS: dict[str, dict[str, Any]] = {
    "greedy": {"steps": STEPS},
    "sample": {"uniforms": UNIFORMS, "temperature": 1.3, "top_k": 9, "top_p": 0.95},
    "beam_search": {"steps": STEPS, "beams": 4, "length_penalty": 0.7},
}


def generated(
    implementation: Implementation, method: str, example: Example, dtype: str = "float64", **options: Any
) -> tuple[np.ndarray, ...]:
    """Results as NumPy arrays, for the first three tokens of the example as a prompt."""
    convert, numpy = implementation.convert, implementation.subject.framework.numpy
    given = METHODS[method] | {"configuration": example.configuration, "source": example.source()} | options
    prompt = given.pop("prompt", example.target()[:, :3])
    parameters = given.pop("parameters", None) or example.parameters(dtype)
    results = getattr(generation(implementation), method)(convert(parameters), convert(prompt), **convert(given))
    return tuple(map(numpy, results if isinstance(results, tuple) else (results,)))


# --- planted faults ---------------------------------------------------------------------------------------------------


def edited(module: str, old: str, new: str) -> ModuleType:
    """A copy of a module in which one piece of its source, that must occur once, is another."""
    source = inspect.getsource(importlib.import_module(module))
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {module}"
    copy = ModuleType(f"{module}_edited")
    exec(compile(source.replace(old, new), copy.__name__, "exec"), copy.__dict__)
    return copy


def module_name(package: str, file: str) -> str:
    """The module of a package; `specification` is named in full."""
    return file if file.startswith("specification.") else f"{package}.{file}"


def plant(module: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a module of any package `old`, which occurs once, becomes `new`, wherever its functions are known already.

    What JAX has compiled stays as it was.
    """
    original = importlib.import_module(module)
    source, copy = inspect.getsource(original), dict(vars(original))
    monkeypatch.setattr(tape, "GRADIENTS", dict(tape.GRADIENTS))  # where what is compiled here enters itself
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in {module}"
    exec(compile(source.replace(old, new), f"{module}_planted", "exec"), copy)
    for name, function in [*vars(original).items()]:
        plain = inspect.unwrap(function) if callable(function) else None
        if inspect.isfunction(plain) and plain.__module__ == module:
            monkeypatch.setattr(plain, "__code__", inspect.unwrap(copy[name]).__code__)
