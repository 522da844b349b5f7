"""Test cases of a port: a checkpoint, a call, and what the definition makes of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from conformance.cases.case import numpy_dtype
from conformance.ports.checkpoints import Checkpoint
from conformance.ports.computation import Computation
from conformance.ports.noise import noise_bound
from conformance.ports.subject import Call
from specification.checkpoints import flatten
from specification.parameters import (
    Classifier,
    Decoder,
    Encoder,
    ImageEmbedding,
    LanguageModel,
    MultiHeadAttention,
    Transformer,
)

BATCH, LENGTH, LONG = 2, 7, 33
"""LONG: of a model without a table of positions, longer than the windows and original lengths of small configs."""
REAL_LENGTH = 16
SMALL, LARGE = 2.0**-9, 8.0
"""Factors of what goes into norms, so that an eps counts, and of queries, so that attention goes to few keys."""


@dataclass(frozen=True, eq=False)
class ModelCase:
    """One call of a port.

    Attributes:
        probe: what the case is made for, in a few words.
        rule: the rule that it speaks of.
        checkpoint: what `build` is given.
        call: what its function is called with.
        dtype: of the model.
        counted: [B, T], the positions whose results count; what padding gives is of no use. None for all.
        sublayer: the only sublayer that does anything, where there is one; "" for none, and None for all.
    """

    probe: str
    rule: str
    checkpoint: Checkpoint
    call: Call
    dtype: str = "float32"
    counted: np.ndarray | None = None
    sublayer: str | None = None

    @cached_property
    def computation(self) -> Computation:
        """What the definition computes, on inputs as the port gets them."""
        inputs = tuple(round_array(array, self.dtype) for array in self.call.inputs)
        checkpoint, options = self.checkpoint, dict(self.call.options)
        return Computation(checkpoint.parameters, checkpoint.configuration, inputs, options, chunks=self.call.chunks)

    @cached_property
    def exact_and_bound(self) -> tuple[np.ndarray, np.ndarray]:
        return noise_bound(self.computation, self.dtype)

    @property
    def exact(self) -> np.ndarray:
        return self.exact_and_bound[0]

    @property
    def bound(self) -> np.ndarray:
        return self.exact_and_bound[1]

    def select(self, result: np.ndarray) -> np.ndarray:
        """Return the results that count, one row for each position."""
        return result if self.counted is None else result[self.counted]


def round_array(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return floating numbers as the dtype holds them, in float64."""
    return array.astype(numpy_dtype(dtype)).astype(np.float64) if array.dtype.kind == "f" else array


# --- calls ------------------------------------------------------------------------------------------------------------


class Calls:
    """Makes the calls of one checkpoint.

    Args:
        checkpoint: the checkpoint.
        accepted: names of options that the port's function takes; None for any.
        generator: draws tokens, images and embeddings.
    """

    def __init__(
        self, checkpoint: Checkpoint, accepted: tuple[str, ...] | None, generator: np.random.Generator
    ) -> None:
        self.checkpoint, self.accepted, self.generator = checkpoint, accepted, generator
        self.parameters = checkpoint.places
        self.configuration = checkpoint.configuration

    def accepts(self, *names: str) -> bool:
        return self.accepted is None or set(names) <= set(self.accepted)

    @property
    def longest(self) -> int:
        """The length of the longest sequence that is tried."""
        stacks = [part for part in (self.parameters, *self.parameters) if isinstance(part, Encoder | Decoder)]
        tables = [getattr(stack.embedding, "positions", None) for stack in stacks]
        rows = [len(table) for table in tables if table is not None]
        skipped = (self.configuration.position_padding or -1) + 1
        return min(rows) - skipped if rows else LONG

    def draw_inputs(self, batch: int, *lengths: int) -> tuple[np.ndarray, ...]:
        """Return the inputs of a call, of one sequence or of a source and a target."""
        p, configuration = self.parameters, self.configuration
        if isinstance(p, Transformer):
            source = self.draw_sequence(p.encoder, batch, lengths[0], configuration.source_padding)
            return source, self.draw_sequence(p.decoder, batch, lengths[-1], configuration.target_padding)
        if isinstance(p, MultiHeadAttention):
            query = p.query[0] if isinstance(p.query, list) else p.query
            return (self.generator.normal(size=(batch, lengths[0], query.weight.shape[0])),)
        stack: Any = p if isinstance(p, Encoder | Decoder) else p[0]
        padding = configuration.position_padding
        padding = configuration.source_padding if padding is None and isinstance(stack, Encoder) else padding
        return (self.draw_sequence(stack, batch, lengths[0], padding),)

    def draw_sequence(self, stack: Encoder | Decoder, batch: int, length: int, padding: int | None) -> np.ndarray:
        embedding = stack.embedding
        if isinstance(embedding, ImageEmbedding):
            return self.generator.normal(size=(batch, *image_shape(self.checkpoint)))
        if embedding is None:
            block: Any = stack.blocks[0]
            return self.generator.normal(size=(batch, length, block.feed_forward.inner.weight.shape[0]))
        every = np.arange(embedding.tokens.shape[0])
        return self.generator.choice(every[every != padding], (batch, length))

    def could_take(self, name: str) -> bool:
        """Whether a function for such a model may have an option of this name."""
        p = self.parameters
        if isinstance(p, Transformer):
            return name.startswith(("source_", "target_"))
        if name == "token_types":
            return self.token_types > 1
        tokens = isinstance(p, Encoder | Decoder | LanguageModel) and not self.takes_images
        return name == "key_padding" and tokens

    @property
    def takes_images(self) -> bool:
        return isinstance(getattr(self.parameters, "embedding", None), ImageEmbedding)

    def list_cases(self, step: bool = False) -> Iterator[ModelCase]:
        """Give calls of every kind that the model has. step: whether its function decodes with a cache."""
        short = min(LENGTH, self.longest)
        yield self.case("plain", "TRF-1", self.draw_inputs(BATCH, short, short - 1), twice=True)
        yield self.case("a single sequence", "TRF-1", self.draw_inputs(1, short, short - 1))
        if self.takes_images:
            return
        yield self.case("one token", "TRF-1", self.draw_inputs(1, 1, 1))
        yield self.case("the longest sequence", self.position_rule(), self.draw_inputs(1, self.longest, self.longest))
        yield from self.list_padded(short)
        if self.accepts("token_types") and self.token_types:
            inputs = self.draw_inputs(BATCH, short)
            types = self.generator.integers(0, self.token_types, inputs[0].shape)
            yield self.case("token types", "EMB-1", inputs, {"token_types": types})
        if step and isinstance(self.parameters, LanguageModel):
            chunks = (short - 3, 1, 1, 1) if short > 3 else (1,) * short
            name = "with a cache, token by token after a part"
            yield self.case(name, "GEN-1", self.draw_inputs(BATCH, short), chunks=chunks)
            if short > 4:  # a mask of later parts shows where they have several tokens, and another number than before
                chunks = (2, 3, short - 5)[: 3 if short > 5 else 2]
                yield self.case("with a cache, in parts", "GEN-1", self.draw_inputs(BATCH, short), chunks=chunks)

    def list_real_cases(self) -> Iterator[ModelCase]:
        """Give the calls of a real checkpoint: few, as each takes long."""
        if self.takes_images:
            yield self.case("an image", "TRF-1", self.draw_inputs(1, 1))
            return
        length = min(REAL_LENGTH, self.longest)
        padded = list(self.list_padded(length))
        yield padded[0] if padded else self.case("plain", "TRF-1", self.draw_inputs(BATCH, length, length))

    @property
    def token_types(self) -> int:
        table = getattr(getattr(self.parameters, "embedding", None), "token_types", None)
        return 0 if table is None else len(table)

    def position_rule(self) -> str:
        if any(layer.rotary for layer in self.configuration.attention_layers):
            return "POS-3"
        stack = self.parameters[0] if isinstance(self.parameters, Transformer) else self.parameters
        stack = stack[0] if isinstance(stack, LanguageModel | Classifier) else stack
        if getattr(stack, "relative_positions", None) is not None:
            return "POS-6"
        return "POS-2" if self.configuration.positions in ("learned", "after_padding") else "POS-1"

    def case(
        self, probe: str, rule: str, inputs: tuple[np.ndarray, ...], options: Mapping[str, Any] | None = None,
        counted: np.ndarray | None = None, **call: Any,
    ) -> ModelCase:  # fmt: skip
        options = dict(options or {})
        if isinstance(self.parameters, Transformer) and self.configuration.target_mask == "none":
            T = inputs[1].shape[1]
            options.setdefault("target_mask", np.tril(np.ones((T, T), bool)))
        return ModelCase(probe, rule, self.checkpoint, Call(inputs, options, **call), counted=counted)

    def list_padded(self, length: int) -> Iterator[ModelCase]:
        """Give batches whose sequences end, or begin, with padding.

        A position of padding at the left may attend to nothing; what comes of it is not counted.
        """
        lengths = np.array([length, max(1, length - 3)])
        index = np.arange(length)
        sides = {"right": index < lengths[:, None], "left": index >= length - lengths[:, None]}
        if isinstance(self.parameters, Transformer):
            if not self.accepts("source_key_padding"):
                return
            for side, keep in sides.items():
                inputs = self.draw_inputs(BATCH, length, length - 1)
                yield self.case(f"padding at the {side}", "MASK-2", inputs, {"source_key_padding": keep})
            for side, keep in sides.items() if self.accepts("target_key_padding") else ():
                # A causal mask hides padding at the right from all that counts.
                inputs = self.draw_inputs(BATCH, length, length)
                options = {"source_key_padding": sides["right"], "target_key_padding": keep}
                yield self.case(
                    f"padding of the source, and of the target at the {side}", "MASK-2", inputs, options, keep
                )
            return
        if self.accepts("key_padding") and not isinstance(self.parameters, Classifier | MultiHeadAttention):
            for side, keep in sides.items():
                inputs = self.draw_inputs(BATCH, length)
                padding = self.configuration.position_padding
                if padding is not None:
                    inputs = (np.where(keep, inputs[0], padding),)
                yield self.case(f"padding at the {side}", "MASK-2", inputs, {"key_padding": keep}, keep)


def image_shape(checkpoint: Checkpoint) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a checkpoint takes."""
    size, config = checkpoint.config["image_size"], checkpoint.config
    height, width = (size, size) if isinstance(size, int) else size
    return config.get("num_channels", 3), height, width


# --- checkpoints in which less happens --------------------------------------------------------------------------------


def list_sublayers(checkpoint: Checkpoint) -> dict[str, tuple[str, ...]]:
    """By name, in the order in which they are taken: the paths of all that a sublayer adds to the residual stream."""
    found: dict[str, tuple[str, ...]] = {}
    for path in flatten(checkpoint.places):
        words = path.split(".")
        if "blocks" in words and words[-2] in ("output", "outer"):
            sublayer = ".".join(words[: words.index("blocks") + 3])  # a mixture has many outer projections
            found[sublayer] = (*found.get(sublayer, ()), path)
    order = {"self_attention": 0, "attention": 0, "cross_attention": 1, "feed_forward": 2}
    return dict(sorted(found.items(), key=lambda item: sort_key(item[0], order)))


def sort_key(sublayer: str, order: Mapping[str, int]) -> tuple[bool, int, int]:
    words = sublayer.split(".")
    return words[0] == "decoder", int(words[-2]), order[words[-1]]


def isolate_sublayer(checkpoint: Checkpoint, name: str) -> Checkpoint:
    """Return the checkpoint with every other sublayer's last projection 0, so that it adds nothing; "" for all of them.

    What an output norm makes of zeros stays, as it does in the definition. So does the first cross-attention beside a
    sublayer of the encoder, which reaches the result through it.
    """
    sublayers = list_sublayers(checkpoint)
    kept = {name, *(other for other in [*filter(is_cross, sublayers)][:1] if name.startswith("encoder."))}
    paths = [path for other, paths in sublayers.items() if other not in kept for path in paths]
    return checkpoint.change(dict.fromkeys(paths, 0.0))


def is_cross(sublayer: str) -> bool:
    return sublayer.endswith("cross_attention")


def list_isolated(checkpoint: Checkpoint, case: ModelCase) -> Iterator[ModelCase]:
    """Give the case with no sublayer, and with each of them alone, in order, but cross-attentions first.

    Those of an encoder are seen through the first of these. Without sublayers, a norm hides how large embeddings are,
    unless its eps counts: that is tried too.
    """
    alone = replace(case, rule="BLK-1", sublayer="")
    small = isolate_sublayer(shrink_stream(checkpoint), "").round(case.dtype)
    yield replace(alone, probe="no sublayer, little in the stream", checkpoint=small)
    for name in ("", *sorted(list_sublayers(checkpoint), key=lambda name: not is_cross(name))):
        probe = f"{name or 'no sublayer'} alone"
        yield replace(alone, probe=probe, sublayer=name, checkpoint=isolate_sublayer(checkpoint, name))


def shrink_stream(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with so little in the residual stream, and behind every norm, that a norm's eps counts."""
    changes: dict[str, Any] = {}
    parameters = flatten(checkpoint.parameters)
    plus_one = checkpoint.configuration.norm.endswith("_plus_one")
    last = {path for paths in list_sublayers(checkpoint).values() for path in paths}
    for path, array in parameters.items():
        words = path.split(".")
        if words[-2:-1] and words[-2].endswith("norm"):
            changes[path] = (1 + array) * SMALL - 1 if plus_one else array * SMALL
        elif "embedding" in words or path in last:
            changes[path] = array * SMALL
    return checkpoint.change(changes).round("float32")


def sharpen_attention(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with large queries, so that most attention goes to few keys."""
    return scale_paths(checkpoint, LARGE, lambda path: ".query." in path or "query_norm" in path)


def scale_paths(checkpoint: Checkpoint, factor: float, chosen: Any) -> Checkpoint:
    values = checkpoint.values.copy()
    places = [place.ravel() for path, place in flatten(checkpoint.places).items() if chosen(path)]
    index = np.unique(np.concatenate(places)) if places else np.array([], int)
    values[index] *= factor
    return replace(checkpoint, values=values)
