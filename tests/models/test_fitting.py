"""A saved model whose arrays fit neither one another nor the configuration is refused, with all of it told at once.

Told is what would fail, or be stretched, where the model is called: every array is made smaller along every axis in
turn, and then the definition fails exactly where something is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import reference_numpy
from specification import Configuration, Transformer
from specification.checkpoints import flatten, unflatten, write_model, write_safetensors
from specification.configuration import AttentionLayer
from specification.fitting import misfits
from specification.rotary import Rotary
from tests.support.helpers import Implementation
from tests.support.small_models import VOCABULARY, E, H, Maker, edited, fitted, without_biases
from tests.support.todays_models import TODAY

PLAIN = Configuration(
    H, positions="learned", source_padding=0, target_padding=0, target_mask="causal and real keys", norm_eps=1e-3
)
AFTER = replace(PLAIN, positions="after_padding", position_padding=1)
RMS = replace(PLAIN, norm="rms_norm", norm_order="pre", positions="none")
IDS = np.array([[3, 1, 4, 1, 5], [10, 6, 0, 0, 0]])
X = np.random.default_rng(0).normal(size=(2, 5, E)).astype("float32")


def maker(**shapes: Any) -> Maker:
    return Maker(dtype="float32", **shapes)


def with_types(encoder: Any) -> Any:
    made = maker()
    return encoder._replace(embedding=encoder.embedding._replace(token_types=made.array(3, E), norm=made.norm()))


def without_embedding(parameters: Any) -> Any:
    return parameters._replace(embedding=None)


MODELS: dict[str, tuple[Callable[[], Any], Configuration, tuple[np.ndarray, ...]]] = {
    "transformer": (lambda: maker().transformer(1), PLAIN, (IDS, IDS)),
    "transformer, separate heads": (
        lambda: maker(per_head=True, key_heads=2, value_width=6).transformer(1), PLAIN, (IDS, IDS)
    ),
    "transformer, no biases": (lambda: fitted(without_biases(maker().transformer(1)), RMS), RMS, (IDS, IDS)),
    "transformer of embedded": (
        lambda: Transformer(without_embedding(maker().encoder(1)), without_embedding(maker().decoder(1, True))),
        PLAIN, (X, X),
    ),
    "classifier": (lambda: maker(key_heads=2).classifier(1), PLAIN, (IDS,)),
    "language model": (lambda: maker().language_model(2), PLAIN, (IDS,)),
    "encoder": (lambda: with_types(maker().encoder(1)), AFTER, (IDS,)),
    "decoder of embedded": (lambda: without_embedding(maker().decoder(2, cross=True)), PLAIN, (X, X)),
    "attention": (lambda: maker(value_width=6).attention(), PLAIN, (X, X, X)),
    "attention, separate heads": (lambda: maker(per_head=True).attention(), PLAIN, (X, X, X)),
}  # fmt: skip
for todays in ("olmo2", "gemma3", "gpt_j", "gpt_oss", "modernbert", "t5, gated", "vit"):
    found = TODAY[todays]()
    MODELS[f"today, {todays}"] = (partial(found.parameters, "float32"), found.configuration, found.inputs)
DEPENDS_ON_IDS = ("tokens", "positions", "token_types")
"""Tables that may have fewer rows, as long as nobody asks for those."""
GIVEN_WIDTHS = ("query.weight", "key.weight", "value.weight")
"""Of attention alone, whose input may be as wide as these are."""


def made(name: str) -> tuple[Any, Configuration, tuple[np.ndarray, ...]]:
    make, configuration, inputs = MODELS[name]
    return make(), configuration, inputs


def fails(parameters: Any, configuration: Configuration, inputs: tuple[np.ndarray, ...]) -> bool:
    try:
        reference_numpy.Model(parameters, configuration)(*inputs)
    except (TypeError, ValueError):
        return True
    return False


def smaller(parameters: Any) -> Iterator[tuple[str, Any]]:
    """Every array without its last slice along every axis, and with the last slice twice."""
    arrays = flatten(parameters)
    for path, array in arrays.items():
        for axis in range(array.ndim):
            if axis > 0 or (path.split(".")[-1] not in DEPENDS_ON_IDS and path not in GIVEN_WIDTHS):
                for rows in (np.arange(array.shape[axis] - 1), np.r_[: array.shape[axis], -1]):
                    other = np.take(array, rows, axis)
                    yield f"{path}, axis {axis}", unflatten(type(parameters), arrays | {path: other})
    memory = [path for path in arrays if path.endswith(("cross_attention.key.weight", "cross_attention.value.weight"))]
    if memory:  # what the last block reads, narrower
        yield "memory", unflatten(type(parameters), arrays | {path: arrays[path][:-1] for path in memory[-2:]})


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_where("today", unless="gpt_oss")
def test_what_is_told_is_what_fails(name: str) -> None:
    parameters, configuration, inputs = made(name)
    assert misfits(parameters, configuration) == []
    assert not fails(parameters, configuration, inputs)
    for path, other in smaller(parameters):
        assert bool(misfits(other, configuration)) == fails(other, configuration, inputs), path


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8, 16, 32])
@pytest.mark.slow_where("today", unless="gpt_oss")
def test_numbers_of_heads(name: str, heads: int) -> None:
    parameters, configuration, inputs = made(name)
    configuration = replace(configuration, num_heads=heads)
    assert bool(misfits(parameters, configuration)) == fails(parameters, configuration, inputs)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_where("today", unless="gpt_oss")
def test_nothing_is_empty_and_nothing_has_another_dtype(name: str) -> None:
    parameters, configuration, _ = made(name)
    arrays = flatten(parameters)
    for path, array in arrays.items():
        for other in (array[:0], array.astype("float64"), array.astype("float16"), array.astype(int), array[None]):
            changed = unflatten(type(parameters), arrays | {path: other})
            assert any(path in told for told in misfits(changed, configuration)), path


def test_norms_may_be_wider() -> None:
    """bfloat16 with norms in float32, which is what they compute in; and not the other way round."""

    def cast(path: str, array: np.ndarray, norm: Any, other: Any) -> np.ndarray:
        return array.astype(norm if "norm" in path else other)

    parameters, configuration, inputs = made("language model")
    arrays = flatten(parameters)
    wide = {path: cast(path, array, "float32", ml_dtypes.bfloat16) for path, array in arrays.items()}
    narrow = {path: cast(path, array, ml_dtypes.bfloat16, "float32") for path, array in arrays.items()}
    wide, narrow = (unflatten(type(parameters), changed) for changed in (wide, narrow))
    assert misfits(wide, configuration) == []
    assert not fails(wide, configuration, inputs)
    assert fails(narrow, configuration, inputs)
    assert "decoder.norm.bias is bfloat16, beside arrays of float32" in misfits(narrow, configuration)


LAYER, WIDE = AttentionLayer(window=(1, 0)), AttentionLayer(rotary=Rotary(width=8))
OTHERWISE: list[tuple[str, dict[str, Any], str]] = [
    ("transformer", {"num_heads": 3}, "encoder.blocks.0.attention.query has 16 columns, which 3 heads"),
    ("transformer", {"source_padding": 11}, "source_padding must be the id of a token below 11, got 11"),
    ("transformer", {"target_padding": 99}, "target_padding must be the id of a token below 11, got 99"),
    ("encoder", {"position_padding": 23}, "position_padding must be the id of a token below 11, got 23"),
    ("encoder", {"position_padding": 23}, "embedding.positions has 24 rows, and positions begin at 24"),
    ("language model", {"positions": "none"}, "decoder.embedding.positions is there, with positions='none'"),
    ("transformer, no biases", {"positions": "learned"}, "encoder.embedding.positions is missing"),
    ("today, gpt_j", {"norm_order": "around"}, "decoder.blocks.1: with norm_order='around' a block needs self_"),
    ("today, gemma3", {"norm_order": "pre"}, "decoder.blocks.0: with norm_order='pre' a block has no feed_forward_out"),
    ("today, gpt_j", {"norm_order": "post"}, "decoder.blocks.0: with norm_order='post' a block needs feed_forward_n"),
    ("transformer", {"norm_order": "parallel"}, "with norm_order='parallel' a block has no cross_attention"),
    ("today, gpt_oss", {"empty_rows": "mean"}, "decoder.blocks.0.self_attention.sinks has no place with empty_rows="),
    ("today, gpt_j", {"attention_layers": (LAYER,) * 3}, "decoder: attention_layers has 3 layers for 2 blocks"),
    ("today, gpt_j", {"attention_layers": (WIDE,)}, "blocks.1.self_attention: rotary width must be at most"),
    ("today, t5, gated", {"relative_furthest": 1}, "encoder.relative_positions: furthest must be more than 2"),
    ("today, vit", {"patch_size": 5}, "embedding.patches.weight has 12 rows, no multiple of 5 * 5"),
    ("today, vit", {"patch_size": None}, "embedding takes images, and the configuration has no patch_size"),
    ("language model", {"norm": "rms_norm_plus_one"}, "norm.bias is there, and rms_norm_plus_one has none"),
    ("language model", {"norm": "rms_norm"}, "decoder.blocks.1.feed_forward_norm.bias is there, and rms_norm has none"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "other", "told"), OTHERWISE)
def test_configurations_that_do_not_fit(
    name: str, other: dict[str, Any], told: str, tmp_path: Path, implementation: Implementation
) -> None:
    parameters, configuration, _ = made(name)
    write_model(tmp_path / "model.safetensors", parameters, replace(configuration, **other))
    with pytest.raises(ValueError, match="is no whole model: ") as caught:
        implementation.restore(tmp_path / "model.safetensors")
    assert told in str(caught.value)


def test_all_that_does_not_fit_is_told_at_once(tmp_path: Path, implementation: Implementation) -> None:
    parameters, configuration, _ = made("transformer")
    arrays = flatten(parameters)
    arrays["encoder.blocks.0.feed_forward.outer.weight"] = np.ones((23, E), "float32")
    arrays["decoder.blocks.0.cross_attention.key.weight"] = np.ones((15, E), "float64")
    arrays["output.weight"] = np.ones((E, 0), "float32")
    options = asdict(configuration) | {"num_heads": 3, "source_padding": VOCABULARY}
    path = tmp_path / "model.safetensors"
    metadata = {"format": "transformer-conformance model", "kind": "Transformer", "configuration": json.dumps(options)}
    write_safetensors(path, arrays, metadata)
    with pytest.raises(ValueError, match="is no whole model: ") as caught:
        implementation.restore(path)
    for told in (
        "encoder.blocks.0.feed_forward.outer.weight must have shape [24, 16], got [23, 16]",
        "decoder.blocks.0.cross_attention.key.weight must have shape [16, any], got [15, 16]",
        "the arrays mix float32 and float64: decoder.blocks.0.cross_attention.key.weight is float64",
        "output.weight has no elements, its shape is [16, 0]",
        "encoder.blocks.0.attention.query has 16 columns, which 3 heads cannot share equally",
        "source_padding must be the id of a token below 11, got 11",
    ):
        assert told in str(caught.value)


# --- planted faults ---------------------------------------------------------------------------------------------------

WIDTHS = "any(size not in (None, there) for size, there in zip(shape, got, strict=True))"
FAULTS = {
    "sizes are not compared": (WIDTHS, "False"),
    "a bias of any length": ('self.array(f"{path}.bias", linear.bias, outer)', "pass"),
    "heads that share nothing": ("elif keys != G * D:", "elif False:"),
    "the output's rows": ("rows = values // G * H", "rows = None"),
    "the inner width": ('p.outer, inner, width)', 'p.outer, None, width)'),
    "lists of any length": ("self.counts(path, p, H, G)", "pass"),
    "today, norms of heads of any width": ("columns if whole else D)", "None)"),
    "today, sinks of any number": ("p.sinks, H,", "p.sinks, None,"),
    "today, biases of any number of heads": ("None, self.configuration.num_heads)", "None, None)"),
    "today, patches of any size": ("columns % size**2", "False"),
    "today, rotations of any width": ("if layer.rotary is not None and", "if False and"),
    "today, the gate's inner width": ('p.inner, width, inner)', 'p.inner, width, None)'),
    "the width of the memory": ("width, memory = self.cross", "width, _ = self.cross"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.slow_where("today")
def test_faults_are_found(name: str) -> None:
    """Each small wrong edit leaves something untold that fails."""
    spoilt = edited("specification.fitting", *FAULTS[name]).misfits

    def untold(parameters: Any, configuration: Configuration) -> bool:
        try:
            return bool(misfits(parameters, configuration)) != bool(spoilt(parameters, configuration))
        except ZeroDivisionError:
            return True

    assert any(untold(*other) for other in others())


def others() -> Iterator[tuple[Any, Configuration]]:
    for name in MODELS:
        parameters, configuration, _ = made(name)
        yield from ((parameters, replace(configuration, num_heads=heads)) for heads in (1, 2, 3, 8, 16))
        yield from ((other, configuration) for _, other in smaller(parameters))
