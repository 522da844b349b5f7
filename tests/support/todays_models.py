"""Small models of random numbers in the manner of those that people use today, each with what is particular to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from specification.configuration import AttentionLayer, Configuration
from specification.parameters import (
    Decoder,
    DecoderBlock,
    Embedding,
    Encoder,
    EncoderBlock,
    FeedForward,
    GatedFeedForward,
    ImageEmbedding,
    LanguageModel,
    Linear,
    MultiHeadAttention,
    Norm,
    Transformer,
)
from specification.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    YarnScaling,
)
from tests.support.small_models import in_dtype

E, H, G, D, F, VOCABULARY, LENGTH = 16, 4, 2, 6, 24, 11, 7
TOKENS = np.random.default_rng(3).integers(1, VOCABULARY, (2, LENGTH))
SOURCE = np.random.default_rng(4).integers(1, VOCABULARY, (2, 5))
KEEP = np.array([[True] * LENGTH, [True] * 4 + [False] * (LENGTH - 4)])
IMAGES = np.random.default_rng(5).normal(size=(2, 3, 4, 6)).astype("float32")


class Example(NamedTuple):
    """What a model is made of, in numbers that float32 holds, and what it is called with."""

    arrays: Any
    configuration: Configuration
    inputs: tuple[np.ndarray, ...] = (TOKENS,)
    key_padding: np.ndarray | None = None

    def parameters(self, dtype: str) -> Any:
        return in_dtype(self.arrays, dtype)

    def source(self) -> np.ndarray | None:
        """Of a model with encoder and decoder."""
        return self.inputs[0] if len(self.inputs) == 2 else None

    def target(self) -> np.ndarray:
        return self.inputs[-1]

    def options(self) -> dict[str, np.ndarray]:
        """Keywords of the model's call."""
        return {} if self.key_padding is None else {"key_padding": self.key_padding}


class Parts:
    """Parameters of random numbers. biases: of projections. centre: around which the weights of norms lie."""

    def __init__(self, *, biases: bool = False, norm_biases: bool = False, centre: float = 1.0) -> None:
        self.generator = np.random.default_rng(0)
        self.biases, self.norm_biases, self.centre = biases, norm_biases, centre

    def array(self, *shape: int, mean: float = 0.0, spread: float = 0.4) -> np.ndarray:
        return self.generator.normal(mean, spread, shape).astype("float32")

    def linear(self, inner: int, outer: int) -> Linear:
        return Linear(self.array(inner, outer), self.array(outer) if self.biases else None)

    def norm(self, width: int = E) -> Norm:
        return Norm(self.array(width, mean=self.centre), self.array(width) if self.norm_biases else None)

    def attention(self, *, between: tuple[int, int] | None = None, sinks: bool = False) -> MultiHeadAttention:
        """between: the widths of the norms of queries and keys."""
        projections = [self.linear(E, columns) for columns in (H * D, G * D, G * D)]
        norms = (None, None) if between is None else tuple(map(self.norm, between))
        return MultiHeadAttention(
            *projections, self.linear(H * D, E), *norms, self.array(H, spread=1.0) if sinks else None
        )

    def feed_forward(self) -> FeedForward:
        return FeedForward(self.linear(E, F), self.linear(F, E))

    def gated(self) -> GatedFeedForward:
        return GatedFeedForward(self.linear(E, F), self.linear(E, F), self.linear(F, E))

    def tokens(self) -> Embedding:
        return Embedding(self.array(VOCABULARY, E, spread=1.0))

    def decoder_block(self, forward: Callable[[], Any], norms: int, **attention: Any) -> DecoderBlock:
        made = self.attention(**attention), self.norm(), None, None, forward()
        return DecoderBlock(*made, *([self.norm() for _ in range(norms)] or [None]))

    def language_model(
        self, forward: Callable[[], Any] | None = None, *, norms: int = 1, **attention: Any
    ) -> LanguageModel:
        """forward: what makes a feed-forward network, with a gate where not given. norms: how many follow it."""
        decoder_blocks = (self.decoder_block(forward or self.gated, norms, **attention) for _ in range(2))
        decoder = Decoder(self.tokens(), [*decoder_blocks], self.norm())
        return LanguageModel(decoder, self.linear(E, VOCABULARY))


def layers(*of_blocks: AttentionLayer) -> dict[str, Any]:
    return {"attention_layers": of_blocks, "positions": "none"}


LLAMA = {"norm_order": "pre", "norm": "rms_norm", "norm_eps": 1e-6, "activation": "silu"}
GEMMA = LLAMA | {"norm": "rms_norm_plus_one", "activation": "gelu_tanh", "scaled_embedding": True}
PLAIN = AttentionLayer(rotary=Rotary())


def llama() -> Example:
    """Grouped heads, wider than E / H, and slowed down frequencies."""
    scaling = Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_length=16)
    layer = AttentionLayer(rotary=Rotary(base=100.0, scaling=scaling))
    return Example(Parts().language_model(), Configuration(H, **LLAMA, **layers(layer)), key_padding=KEEP)


def mistral() -> Example:
    """A window of three keys."""
    layer = AttentionLayer(window=(2, 0), rotary=Rotary(scaling=LinearScaling(factor=2.0)))
    return Example(Parts().language_model(), Configuration(H, **LLAMA, **layers(layer)))


def phi3() -> Example:
    """Four of six columns turned, by two lists of divisors."""
    scaling = LongRopeScaling(short_factors=(1.0, 1.5), long_factors=(2.0, 4.0), original_length=4, factor=2.0)
    layer = AttentionLayer(rotary=Rotary(width=4, scaling=scaling))
    return Example(Parts().language_model(), Configuration(H, **LLAMA, **layers(layer)))


def qwen2() -> Example:
    """Biases, and a base that grows with the sequence."""
    layer = AttentionLayer(rotary=Rotary(scaling=DynamicScaling(factor=2.0, original_length=4)))
    return Example(Parts(biases=True).language_model(), Configuration(H, **LLAMA, **layers(layer)))


def qwen3() -> Example:
    """Norms of queries and keys, of every head by itself."""
    return Example(Parts().language_model(between=(D, D)), Configuration(H, **LLAMA, **layers(PLAIN)), key_padding=KEEP)


def olmo2() -> Example:
    """Norms behind the sublayers, and norms of queries and keys of all heads together."""
    options = LLAMA | {"norm_order": "after"}
    return Example(Parts().language_model(between=(H * D, G * D)), Configuration(H, **options, **layers(PLAIN)))


def gemma2() -> Example:
    """Four norms, two soft caps, a scale of its own, and a window in every other block."""
    made = Parts(centre=0.0).language_model(norms=3)
    options = GEMMA | {"norm_order": "around", "scale": 0.3, "softcap": 2.0, "output_softcap": 3.0}
    window = AttentionLayer(window=(2, 0), rotary=Rotary())
    return Example(made, Configuration(H, **options, **layers(window, PLAIN)), key_padding=KEEP)


def gemma3() -> Example:
    """As Gemma 2, but with norms of queries and keys for the caps, and two bases."""
    made = Parts(centre=0.0).language_model(norms=3, between=(D, D))
    local = AttentionLayer(window=(1, 0), rotary=Rotary(base=10.0))
    far = AttentionLayer(rotary=Rotary(base=1e6, scaling=LinearScaling(factor=8.0)))
    return Example(made, Configuration(H, **GEMMA | {"norm_order": "around"}, **layers(local, far)))


def gpt_neox() -> Example:
    """Parallel sublayers with two norms, and columns that are not turned."""
    parts = Parts(biases=True, norm_biases=True)
    made = parts.language_model(parts.feed_forward)
    layer = AttentionLayer(rotary=Rotary(width=2))
    return Example(made, Configuration(H, norm_order="parallel", activation="gelu", **layers(layer)), key_padding=KEEP)


def gpt_j() -> Example:
    """Parallel sublayers with one norm, and neighbours in pairs."""
    parts = Parts(biases=True, norm_biases=True)
    made = parts.language_model(parts.feed_forward, norms=0)
    layer = AttentionLayer(rotary=Rotary(width=4, pairing="interleaved"))
    return Example(made, Configuration(H, norm_order="parallel", activation="gelu_tanh", **layers(layer)))


def gpt_oss() -> Example:
    """Sinks, windows, biases, and a ramp of frequencies."""
    rotary = Rotary(base=150.0, scaling=YarnScaling(factor=4.0, original_length=8, truncate=False))
    window = AttentionLayer(window=(1, 0), rotary=rotary)
    made = Parts(biases=True).language_model(sinks=True)
    return Example(made, Configuration(H, **LLAMA, **layers(window, AttentionLayer(rotary=rotary))), key_padding=KEEP)


def modernbert() -> Example:
    """An encoder whose first attention has no norm, with windows to both sides."""
    parts = Parts()
    blocks = [
        EncoderBlock(parts.attention(), None if i == 0 else parts.norm(), parts.gated(), parts.norm()) for i in range(3)
    ]
    encoder = Encoder(parts.tokens()._replace(norm=parts.norm()), blocks, parts.norm())
    local = AttentionLayer(window=(1, 1), rotary=Rotary(base=10.0))
    configuration = Configuration(H, norm_order="pre", activation="gelu", **layers(PLAIN, local, local))
    return Example(encoder, configuration, key_padding=KEEP)


def t5(*, gated: bool) -> Example:
    """Biases by distance, shared by all blocks, no scale, and an output layer that is scaled."""
    parts = Parts()

    def forward() -> FeedForward | GatedFeedForward:
        return parts.gated() if gated else parts.feed_forward()

    up = [EncoderBlock(parts.attention(), parts.norm(), forward(), parts.norm()) for _ in range(2)]
    down = [
        DecoderBlock(parts.attention(), parts.norm(), parts.attention(), parts.norm(), forward(), parts.norm())
        for _ in range(2)
    ]
    tables = [parts.array(buckets, H, spread=1.0) for buckets in (8, 6)]
    encoder = Encoder(parts.tokens(), up, parts.norm(), tables[0])
    decoder = Decoder(parts.tokens(), down, parts.norm(), tables[1])
    configuration = Configuration(
        H, norm_order="pre", norm="rms_norm", norm_eps=1e-6, activation="gelu_tanh" if gated else "relu", scale=1.0,
        positions="none", relative_furthest=6, scaled_output=not gated, source_padding=0,
    )  # fmt: skip
    return Example(
        Transformer(encoder, decoder, parts.linear(E, VOCABULARY)),
        configuration,
        (np.where(KEEP[:, 2:], SOURCE, 0), TOKENS),
    )


def vit() -> Example:
    """An encoder of images."""
    parts = Parts(biases=True, norm_biases=True)
    patches = parts.linear(3 * 2 * 2, E)
    embedding = ImageEmbedding(patches, parts.array(E, spread=1.0), parts.array(7, E, spread=1.0))
    blocks = [EncoderBlock(parts.attention(), parts.norm(), parts.feed_forward(), parts.norm()) for _ in range(2)]
    configuration = Configuration(H, norm_order="pre", activation="gelu", positions="none", patch_size=2)
    return Example(Encoder(embedding, blocks, parts.norm()), configuration, (IMAGES,))


DECODERS = (llama, mistral, phi3, qwen2, qwen3, olmo2, gemma2, gemma3, gpt_neox, gpt_j, gpt_oss)
TODAY: dict[str, Callable[[], Example]] = {one.__name__: one for one in (*DECODERS, modernbert)}
TODAY |= {"t5": lambda: t5(gated=False), "t5, gated": lambda: t5(gated=True), "vit": vit}
