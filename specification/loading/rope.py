"""Windows and rotary embeddings of attention layers, out of the config.json of a Hugging Face model.

transformers 5 writes `rope_parameters`; older files have `rope_theta`, `rope_scaling` and `partial_rotary_factor`,
which mean the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specification.configuration import AttentionLayer, is_count
from specification.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rotary,
    Scaling,
    YarnScaling,
)

Content = Mapping[str, Any]

ROPE_KEYS = (
    "rope_parameters",
    "rope_theta",
    "rope_scaling",
    "max_position_embeddings",
    "original_max_position_embeddings",
)
"""Keys of a file from which `rotary_of` reads."""

LAYER_KEYS = ("num_hidden_layers", "layer_types", "sliding_window")
FULL, SLIDING = "full_attention", "sliding_attention"


def head_width(told: Content) -> int:
    """Return the width of a head."""
    return int(told.get("head_dim") or told["hidden_size"] // told["num_attention_heads"])


def rotary_of(
    told: Content, *, base: float | None = None, share: float | None = None, parameters: Content | None = None
) -> Rotary:
    """Read how queries and keys are rotated.

    Args:
        told: the file's content, with defaults.
        base: what is meant where the parameters do not say it; None for the file's `rope_theta`.
        share: of a head's columns, which are rotated where `rope_parameters` does not say it; None where the model
            always rotates all of them.
        parameters: in place of the file's own `rope_scaling` or `rope_parameters`.

    Returns:
        The value of `AttentionLayer.rotary`.

    Raises:
        ValueError: for what is not supported.
    """
    flat = told.get("rope_scaling") or told.get("rope_parameters") or {}
    given = {key: value for key, value in (flat if parameters is None else parameters).items() if value is not None}
    kind = given.pop("rope_type", given.pop("type", "default"))
    given.pop("type", None)
    base = given.pop("rope_theta", told["rope_theta"] if base is None else base)
    own = given.pop("partial_rotary_factor", told.get("partial_rotary_factor"))
    if share is None and own not in (None, 1):
        raise ValueError(f"partial_rotary_factor is {own!r}, of which only 1.0 is supported")
    rotated = 1 if share is None else share if own is None else own
    width = None if rotated == 1 else int(head_width(told) * rotated)
    scaling = scaling_of(kind, given, told)
    if given:
        first, value = next(iter(given.items()))
        raise ValueError(f"{first} is {value!r} in the rope parameters, which is not known with rope_type {kind!r}")
    return Rotary(base=float(base), width=width, scaling=scaling)


def rotary_by_kind(told: Content, base: Mapping[str, str], scaled: Sequence[str]) -> dict[str, Rotary]:
    """Read how the full and the sliding layers rotate, where they do it differently.

    base: by kind of layer, the key of its base in older files, which has a default. scaled: the kinds that
    `rope_scaling` of older files is about. ValueError for what is not supported.
    """
    given, found = told.get("rope_parameters") or {}, {}
    unknown = sorted(given.keys() - base.keys())
    if unknown:
        raise ValueError(f"rope_parameters has {', '.join(unknown)}, and must be by kind of layer: {', '.join(base)}")
    for kind, key in base.items():
        scaling = (told.get("rope_scaling") or {}) if kind in scaled else {}
        own = {**(given.get(kind) or {}), **scaling}
        if own.get("truncate") is False:  # which transformers does not read there
            raise ValueError("truncate is False in the rope parameters of a kind of layer, which is not supported")
        found[kind] = rotary_of(told, base=told[key], parameters=own)
    return found


def scaling_of(kind: str, given: dict[str, Any], told: Content) -> Scaling | None:
    """Take the parameters of one kind of scaling, a `rope_type`, out of a dictionary; `told` has the lengths."""
    if kind == "default":
        given.pop("original_max_position_embeddings", None)
        return None
    if kind == "linear":
        return LinearScaling(factor=given.pop("factor"))
    if kind == "dynamic":
        return DynamicScaling(factor=given.pop("factor"), original_length=told["max_position_embeddings"])
    if kind not in ("yarn", "llama3", "longrope"):
        raise ValueError(f"rope_type is {kind!r}, which is not known")
    inside = given.pop("original_max_position_embeddings", None)
    original = told.get("original_max_position_embeddings") or inside or told["max_position_embeddings"]
    factor = given.pop("factor", None)
    if factor is None:
        factor = told["max_position_embeddings"] / original
    if kind == "yarn":
        computed = attention_factor(factor, given.pop("mscale", None), given.pop("mscale_all_dim", None))
        own = given.pop("attention_factor", None)
        return YarnScaling(
            factor=factor,
            original_length=original,
            beta_fast=given.pop("beta_fast", None) or 32.0,
            beta_slow=given.pop("beta_slow", None) or 1.0,
            attention_factor=computed if own is None else own,
            truncate=given.pop("truncate", True),
        )
    if kind == "llama3":
        return Llama3Scaling(
            factor=factor,
            low_frequency_factor=given.pop("low_freq_factor"),
            high_frequency_factor=given.pop("high_freq_factor"),
            original_length=original,
        )
    return LongRopeScaling(
        short_factors=tuple(given.pop("short_factor")),
        long_factors=tuple(given.pop("long_factor")),
        original_length=original,
        factor=factor,
        attention_factor=given.pop("attention_factor", None),
    )


def attention_factor(factor: float, scale: float | None, scale_all: float | None) -> float | None:
    """Return YaRN's attention factor out of `mscale` and `mscale_all_dim`; None where one of them is not given."""
    if not (scale and scale_all):
        return None
    over, under = (0.1 * one * math.log(factor) + 1 if factor > 1 else 1.0 for one in (scale, scale_all))
    return over / under


# --- layers -----------------------------------------------------------------------------------------------------------


def alike(told: Content) -> tuple[AttentionLayer, ...]:
    """Read layers that are all alike, and have no window."""
    return layers_of({**told, "sliding_window": None}, rotary_of(told))


def layers_of(
    told: Content, rotaries: Sequence[Rotary | None] | Rotary, kinds: Sequence[str] | None = None, *, future: int = 0
) -> tuple[AttentionLayer, ...]:
    """Put windows and rotary embeddings together.

    Args:
        told: the file's content, with defaults; its `sliding_window` counts the query's own key too.
        rotaries: of every layer, or the same for all.
        kinds: of every layer, FULL or SLIDING, where `layer_types` does not say it; None where all layers have the
            window.
        future: how many keys after its own a query of a window sees.

    Returns:
        The value of `Configuration.attention_layers`: one layer where all are alike.

    Raises:
        ValueError: for what is not supported.
    """
    count, window = told["num_hidden_layers"], told.get("sliding_window")
    if not is_count(count) or count == 0:
        raise ValueError(f"num_hidden_layers must be an integer of at least 1, got {count!r}")
    if kinds is None:
        kinds = [FULL if window is None else SLIDING] * count
    elif told.get("layer_types") is not None:
        kinds = told["layer_types"]
    if len(kinds) != count or not {*kinds} <= {FULL, SLIDING}:
        raise ValueError(f"layer_types is {list(kinds)!r}, and must be {count} of {FULL!r} and {SLIDING!r}")
    if SLIDING in kinds and (not is_count(window) or window == 0):
        raise ValueError(f"sliding_window must be an integer of at least 1, got {window!r}")
    every = [rotaries] * count if isinstance(rotaries, Rotary) else list(rotaries)
    windows = {FULL: None, SLIDING: None if window is None else (window - 1, future)}
    made = [AttentionLayer(window=windows[kind], rotary=one) for kind, one in zip(kinds, every, strict=True)]
    return (made[0],) if len({*made}) == 1 else tuple(made)


def kinds_of(told: Content, otherwise: Sequence[str]) -> Sequence[str]:
    """Return the kinds of layers that a file names; the others where it names none, or names unknown ones."""
    kinds = told.get("layer_types")
    return kinds if isinstance(kinds, list) and {*kinds} <= {FULL, SLIDING} else otherwise


def alternating(told: Content, every: int, *, full_first: bool = False) -> list[str]:
    """Name the kinds of layers of which one in so many is full, the first or the last of them."""
    turn = 0 if full_first else every - 1
    return [FULL if i % every == turn else SLIDING for i in range(told["num_hidden_layers"])]


def upper_windows(told: Content) -> tuple[AttentionLayer, ...]:
    """Read layers of Qwen's kind: where a window is used at all, it begins with layer `max_window_layers`."""
    window = told.get("sliding_window") if told.get("use_sliding_window") else None
    first = told["num_hidden_layers"] if window is None else told["max_window_layers"]
    kinds = [FULL if i < first else SLIDING for i in range(told["num_hidden_layers"])]
    return layers_of({**told, "sliding_window": window}, rotary_of(told), kinds)
