"""Known mistakes of kernels that go through the keys in blocks with a running maximum, sum and output."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.cases import Case
from conformance.diagnosis.matching import Mistake, computed
from conformance.diagnosis.steps import exact_scores

BLOCKS = (8, 16, 32, 64, 128)


def online(case: Case, block: int, rescale_output: bool = True, rescale_sum: bool = True) -> Any:
    """Online softmax in float64, with one rescaling left out."""
    if case.operation != "attention" or case.options.get("dropout_keep") is not None:
        return None
    scores, value, sinks = exact_scores(case)
    K = scores.shape[-1]
    maximum = np.full((*scores.shape[:3], 1), -np.inf)
    total, output = np.zeros_like(maximum), np.zeros((*scores.shape[:3], value.shape[-1]))
    for start in range(0, K, block):
        part = scores[..., start : start + block]
        larger = np.maximum(maximum, part.max(axis=-1, keepdims=True, initial=-np.inf))
        safe = np.where(np.isfinite(larger), larger, 0)
        exponentials, rescale = np.exp(part - safe), np.where(np.isfinite(maximum), np.exp(maximum - safe), 0)
        total = total * (rescale if rescale_sum else 1) + exponentials.sum(axis=-1, keepdims=True)
        output = output * (rescale if rescale_output else 1) + exponentials @ value[:, :, start : start + block]
        maximum = larger
    if sinks is not None:
        total = total + np.exp(sinks - np.where(np.isfinite(maximum), maximum, 0))
    return output / np.where(total == 0, 1, total)


def without_tail(case: Case, block: int) -> Any:
    """Keys past the last whole block are not seen."""
    K = case.inputs["key"].shape[2]
    if case.operation != "attention" or K % block == 0 or case.options.get("dropout_keep") is not None:
        return None
    scores, value, sinks = exact_scores(case)
    scores = np.where(np.arange(K) < K - K % block, scores, -np.inf)
    return softmax(scores, sinks) @ value


def padded_tail(case: Case, block: int) -> Any:
    """The last block is filled up with keys and values of 0, whose scores of 0 count."""
    K = case.inputs["key"].shape[2]
    if case.operation != "attention" or K % block == 0 or case.options.get("dropout_keep") is not None:
        return None
    scores, value, sinks = exact_scores(case)
    scores = np.concatenate([scores, np.zeros((*scores.shape[:3], -K % block))], axis=-1)
    return softmax(scores, sinks)[..., :K] @ value


def softmax(scores: np.ndarray, sinks: Any) -> np.ndarray:
    maximum = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    maximum = np.where(np.isfinite(maximum), maximum, 0)
    exponentials = np.exp(scores - maximum)
    total = exponentials.sum(axis=-1, keepdims=True)
    total = total if sinks is None else total + np.exp(sinks - maximum)
    return exponentials / np.where(total == 0, 1, total)


def mistakes_in_blocks(block: int) -> list[Mistake]:
    of = f"(blocks of {block} keys)"
    return [
        computed(f"the running output is not rescaled when the maximum grows {of}", lambda c: online(c, block, False)),
        computed(
            f"the running sum is not rescaled when the maximum grows {of}", lambda c: online(c, block, True, False)
        ),
        computed(f"nothing is rescaled when the maximum grows {of}", lambda c: online(c, block, False, False)),
        computed(f"keys past the last whole block are left out {of}", lambda c: without_tail(c, block)),
        computed(f"the last block's padding counts as keys with score 0 {of}", lambda c: padded_tail(c, block)),
    ]


MISTAKES = [mistake for block in BLOCKS for mistake in mistakes_in_blocks(block)]
