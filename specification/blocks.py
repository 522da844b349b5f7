"""What a block is made of: its sublayers, the options of its attention, and the norms that its order asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from specification.arrays import Array
from specification.configuration import AttentionLayer, Configuration
from specification.dropout import DecoderBlockDropout, Dropout, EncoderBlockDropout, SublayerDropout
from specification.masks import Mask, SlidingWindow, both
from specification.parameters import DecoderBlock, EncoderBlock, Norm


class Sublayer(NamedTuple):
    """A sublayer of x, with what stands around it. output_norm: of what it gives, where there are two norms."""

    function: Callable[[Any], Any]
    norm: Norm | None
    dropout: SublayerDropout
    output_norm: Norm | None = None


def sublayers_of(
    block: EncoderBlock | DecoderBlock,
    functions: Mapping[str, Callable[[Any], Any]],
    dropout: EncoderBlockDropout | DecoderBlockDropout,
) -> list[Sublayer]:
    """The sublayers that a block has, in the order of these functions, which are by the names of its parameters."""
    found = []
    for name, function in functions.items():
        if getattr(block, name) is not None:
            norm, output_norm = getattr(block, f"{name}_norm"), getattr(block, f"{name}_output_norm", None)
            found.append(Sublayer(function, norm, getattr(dropout, name), output_norm))
    return found


def attention_options(
    width: int, mask: Mask | Array | None, weights_dropout: Dropout | None, configuration: Configuration
) -> dict[str, Any]:
    """Keywords of `attention`, for inputs of that width."""
    keep, rate = (None, 0.0) if weights_dropout is None else weights_dropout
    scale: Any = configuration.scale
    if isinstance(scale, str):
        scale = None if scale == "head_width" else 1 / math.sqrt(width)
    return {
        "mask": mask,
        "scale": scale,
        "softcap": configuration.softcap,
        "dropout_keep": keep,
        "dropout_rate": rate,
        "empty_rows": configuration.empty_rows,
    }


def windowed(mask: Mask | Array | None, layer: AttentionLayer, offset: int | Array = 0) -> Any:
    """The mask, and the layer's window around queries at positions offset, offset + 1, ... (MASK-4)."""
    return mask if layer.window is None else both(mask, SlidingWindow(*layer.window, offset))


def misplaced_norms(block: EncoderBlock | DecoderBlock, norm_order: str) -> list[str]:
    """Say, in ends of sentences, what a block has too little or too much for the order of its norms (BLK-1, BLK-3)."""
    problems = []
    there = {name: part is not None for name, part in block._asdict().items()}
    sublayers = [name for name in there if not name.endswith("norm") and there[name]]
    for name in sublayers:
        optional = norm_order == "pre" or (norm_order == "parallel" and name == "feed_forward")
        if not there[f"{name}_norm"] and not optional:
            problems.append(f"a block needs {name}_norm")
        if there.get(f"{name}_output_norm", False) != (norm_order == "around") and name != "cross_attention":
            needs = "needs" if norm_order == "around" else "has no"
            problems.append(f"a block {needs} {name}_output_norm")
    if there.get("cross_attention_norm") and not there["cross_attention"]:
        problems.append("a block without cross_attention has no cross_attention_norm")
    if there.get("cross_attention") and norm_order in ("around", "parallel"):
        problems.append("a block has no cross_attention")
    return problems
