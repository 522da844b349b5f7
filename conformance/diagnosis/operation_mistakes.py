"""Mistakes that implementations of each operation are known to make, beside those of every masked operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from conformance.diagnosis import (
    feed_forward,
    gated_feed_forward,
    lookups,
    losses,
    merging,
    multi_head,
    norm_gradients,
    norms,
    positions,
    rotary,
    stepping,
)
from conformance.diagnosis.matching import Failing, Mistake

NORMS = ("layer_norm", "rms_norm", "standard_deviation_norm")
MISTAKES: dict[str, tuple[Mistake, ...]] = {
    "merge_attention": merging.MISTAKES,
    "multi_head_attention": multi_head.MISTAKES,
    **dict.fromkeys(NORMS, tuple(norms.NORM_MISTAKES)),
    "feed_forward": feed_forward.MISTAKES,
    "gated_feed_forward": gated_feed_forward.MISTAKES,
    "embedding": positions.EMBEDDING,
    "learned_positions": positions.LEARNED,
    "sinusoidal_positions": positions.SINUSOIDAL,
    "alibi_bias": positions.ALIBI,
    "relative_position_bias": positions.RELATIVE,
    "adam_step": stepping.ADAM,
    "clip_by_global_norm": stepping.CLIPPING,
    "cross_entropy": losses.CROSS_ENTROPY,
    "nll_loss": losses.NLL,
    "rotary_embedding": rotary.MISTAKES,
    "rotary_frequencies": rotary.OF_FREQUENCIES,
    "sgd_step": stepping.SGD,
}
MEASURED: dict[str, Callable[[Failing, str], Iterator[Mistake]]] = {
    **dict.fromkeys(NORMS, norm_gradients.measured),
    "feed_forward": feed_forward.measured,
    **dict.fromkeys(("embedding", "learned_positions"), lookups.measured),
    "relative_position_bias": positions.measured_bias,
    **dict.fromkeys(("cross_entropy", "nll_loss"), losses.measured),
}
"""More of them in one result, by its name, with numbers that the answers tell."""
