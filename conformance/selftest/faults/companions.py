"""Weights, log-sum-exps and merging gone wrong (ATT-14)."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.selftest.faults import right_layers as right
from conformance.selftest.faults.fault import Fault
from conformance.selftest.faults.masking import everywhere, no_maximum
from conformance.selftest.faults.planting import of_logsumexp, of_weights
from conformance.selftest.faults.right_layers import (
    MERGING,
    merge_attention_by,
)
from conformance.selftest.faults.right_numpy import (
    RIGHT,
    Function,
    attention_logsumexp,
    exponentials,
    maximum,
    total,
)

# --- companions -------------------------------------------------------------------------------------------------------


def narrow_logsumexp(query: Any, key: Any, *, mask: Any = None, bias: Any = None, sinks: Any = None) -> Any:
    return attention_logsumexp(query, key, mask=mask, bias=bias, sinks=sinks).astype(query.dtype)


COMPANIONS = (
    of_weights("ATT-14", "weights in the compute dtype", rounded=lambda output, dtype: output),
    of_weights("ATT-14", "weights before they are normalised", normalized=lambda e, total, allowed: e),
    of_logsumexp("ATT-14", "log-sum-exp by base 2", logsumexp=lambda m, total: (m + np.log(total))[..., 0] / np.log(2)),
    of_logsumexp("ATT-14", "log-sum-exp of the shifted scores", logsumexp=lambda m, total: np.log(total)[..., 0]),
    of_logsumexp("ATT-14", "log-sum-exp without sinks", total=lambda e, m, sinks: total(e, m, None)),
    Fault("ATT-14", "log-sum-exp in the inputs' dtype", "attention_logsumexp", narrow_logsumexp, attention_logsumexp),
    of_logsumexp("ATT-14", "log-sum-exp rounded to 16 bits",
                 logsumexp=lambda m, total: RIGHT.logsumexp(m, total).astype(np.float16).astype(total.dtype)),
    of_logsumexp("ATT-14", "log-sum-exp overflowing in the sink",
                 maximum=lambda s, allowed, sinks: maximum(s, allowed, None)),
    of_logsumexp("ATT-14", "log-sum-exp from a rounded default scale",
                 scale=lambda s, q, v: float(np.float16(RIGHT.scale(s, q, v)))),
    of_logsumexp("ATT-14", "log-sum-exp over forbidden keys too", exponentials=everywhere(exponentials)),
    of_logsumexp("ATT-14", "one-pass log-sum-exp without a maximum", maximum=no_maximum),
)  # fmt: skip

# --- merging ----------------------------------------------------------------------------------------------------------


def merging(name: str, **steps: Function) -> Fault:
    return Fault(
        "ATT-14", name, "merge_attention", merge_attention_by(MERGING._replace(**steps)), right.merge_attention
    )


def equal_weights(logsumexps: Any, maximum: Any) -> Any:
    return np.where(logsumexps == -np.inf, 0, 1).astype(logsumexps.dtype)


def first_two(outputs: Any, logsumexps: Any) -> Any:
    """Only two parts are ever looked at."""
    return right.merge_attention(outputs[:2], logsumexps[:2])


def one_by_one(outputs: Any, logsumexps: Any) -> Any:
    """Merged one after the other, the sum rounded to the parts' dtype every time."""
    output, logsumexp = right.merge_attention(outputs[:1], logsumexps[:1])
    for more, other in zip(outputs[1:], logsumexps[1:], strict=True):
        output, logsumexp = right.merge_attention([output, more], [logsumexp, other])
    return output, logsumexp


def in_the_outputs_dtype(outputs: Any, logsumexps: Any) -> Any:
    output, logsumexp = right.merge_attention(outputs, logsumexps)
    return output, logsumexp.astype(output.dtype)


MERGES = (
    merging("parts averaged", weights=equal_weights),
    merging("a part that saw nothing", largest=lambda logsumexps: logsumexps.max(axis=0)),
    merging("merged without a maximum", largest=lambda logsumexps: np.zeros_like(logsumexps[0])),
    merging("largest log-sum-exp as the whole",
            logsumexp=lambda maximum, total: np.where(total == 0, -np.inf, maximum)),
    merging("parts by base 2", weights=lambda logsumexps, maximum: np.exp2(logsumexps - maximum)),
    Fault("ATT-14", "two parts at most", "merge_attention", first_two, right.merge_attention),
    Fault("ATT-14", "rounded after every part", "merge_attention", one_by_one, right.merge_attention),
    Fault("ATT-14", "merged log-sum-exp in the outputs' dtype", "merge_attention", in_the_outputs_dtype,
          right.merge_attention),
)  # fmt: skip

FAULTS = (*COMPANIONS, *MERGES)
