"""The gradients of each operation that are sums over rows, by name: some rows may not count, or be added narrowly."""

from __future__ import annotations

from collections.abc import Callable

from conformance.diagnosis import feed_forward, gated_feed_forward, lookups, norm_gradients, positions
from conformance.diagnosis.matching import Failing
from conformance.diagnosis.row_sums import RowSum

ROW_SUMS: dict[str, Callable[[Failing], dict[str, RowSum]]] = {
    **dict.fromkeys(("layer_norm", "rms_norm", "standard_deviation_norm"), norm_gradients.row_sums),
    "feed_forward": feed_forward.row_sums,
    "gated_feed_forward": gated_feed_forward.row_sums,
    **dict.fromkeys(("embedding", "learned_positions"), lookups.row_sums),
    "relative_position_bias": positions.bias_sums,
}
