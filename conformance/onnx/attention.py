"""How ONNX's Attention (opsets 23 to 25) maps to the definition.

    ONNX                                     here
    Q, K, V of rank 4                        query, key, value
    Q, K, V of rank 3, q_num_heads, ...      the same, after `split_heads` (MHA-1); Y after `concatenate_heads`
    more query heads than key heads          the same: head h reads key head h // (H / G) (ATT-7)
    past_key, past_value                     keys and values, concatenated before the new ones; also present_key, ...
    attn_mask, boolean                       a dense mask, with the same polarity (MASK-1)
    attn_mask, floating                      a bias (ATT-3): -inf in it forbids
    attn_mask of rank 1 to 3, or too short   broadcast from the right to rank 4; missing keys are forbidden
    is_causal                                Causal(offset) (MASK-3), with the offset below
    left_window_size, right_window_size      SlidingWindow(left, right, offset) (MASK-4); -1 is None
    nonpad_kv_seqlen                         KeyLengths
    several of these                         `&`: a pair counts only where all allow it (MASK-6)
    scale                                    scale; both default to 1 / sqrt(D)
    softcap                                  softcap; 0 is None
    softmax_precision                        nothing: the softmax is in float32 or wider (ATT-9)
    qk_matmul_output, mode 0, 1, 2           `attention_logsumexp` over one key at a time, which is that key's score
    qk_matmul_output, mode 3                 `attention_weights`

Offset. Query i stands at position i + offset, where offset counts the keys before the queries: the past's length; else,
with nonpad_kv_seqlen, that of the batch element less Q, which may be negative; else 0. So the first query is aligned
with the first new key; with nonpad_kv_seqlen, the last query with the last key that counts.

Order. ONNX, too, caps first and then adds mask and bias (ATT-2): mode 1 gives scores after the softcap, mode 2 after
softcap, mask and bias, with -inf where a pair is forbidden. In mode 0 the scores are scaled and not capped: ONNX's
definition and expansion say so, while its reference evaluator (1.23.2) returns them capped. No case asks for it.

Differs. ONNX forbids by adding -inf, not by leaving out, so NaN at a forbidden key or value reaches the output, against
MASK-7; no case has one. Rows that allow nothing are 0, as here (ATT-6), because ONNX sets them to 0 after the softmax.
For float16 and bfloat16 everything in between has the inputs' dtype, against ATT-9: see `deviations.py`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from conformance.cases.case import Case
from conformance.onnx.cases import NodeCase
from conformance.onnx.translation import Copied, Translated, Translation, keep_array, present_arguments
from reference_numpy import materialize
from reference_numpy.multi_head_attention import concatenate_heads, split_heads
from specification import Causal, Dense, KeyLengths, SlidingWindow
from specification.dtypes import compute_dtype_name, dtype_name

RAW, CAPPED, BIASED, WEIGHTS = range(4)
"""Values of qk_matmul_output_mode."""


class Call(NamedTuple):
    """The arguments of `attention` that a node means."""

    query: np.ndarray  # [B, H, Q, D]
    key: np.ndarray  # [B, G, K, D]
    value: np.ndarray  # [B, G, K, V]
    mask: Any
    bias: np.ndarray | None
    scale: float | None
    softcap: float | None

    @property
    def pairs(self) -> tuple[int, int, int, int]:
        return (*self.query.shape[:3], self.key.shape[2])


def attention(node: NodeCase) -> Translation:
    """Every output of the node."""
    call = attention_call(node)
    outputs: Translation = {"Y": Translated(attention_case(call), rank_of_query(node))}
    outputs |= {"present_key": Copied(call.key), "present_value": Copied(call.value)}
    outputs["qk_matmul_output"] = matrix(call, node.attributes.get("qk_matmul_output_mode", RAW))
    return {name: outputs[name] for name in node.outputs}


# --- arguments --------------------------------------------------------------------------------------------------------


def attention_call(node: NodeCase) -> Call:
    query = split_array(node, "Q", "q_num_heads")
    key, value = append_to_past(node, "K", "past_key"), append_to_past(node, "V", "past_value")
    pairs = (*query.shape[:3], key.shape[2])
    attn_mask = four_axes(node.inputs.get("attn_mask"), pairs)
    boolean = attn_mask is not None and attn_mask.dtype == bool
    return Call(
        query,
        key,
        value,
        combine_masks(causal(node, pairs), window(node, pairs), lengths(node), Dense(attn_mask) if boolean else None),
        None if boolean else attn_mask,
        node.attributes.get("scale"),
        node.attributes.get("softcap") or None,
    )


def split_array(node: NodeCase, name: str, heads: str) -> np.ndarray:
    """[B, H, T, W], also from [B, T, H * W]."""
    array = node.inputs[name]
    return split_heads(array, node.attributes[heads]) if array.ndim == 3 else array


def append_to_past(node: NodeCase, name: str, past: str) -> np.ndarray:
    """Keys or values: the past's, if there is one, and then the new ones."""
    new = split_array(node, name, "kv_num_heads")
    return np.concatenate([node.inputs[past], new], axis=2) if past in node.inputs else new


def four_axes(attn_mask: np.ndarray | None, pairs: tuple[int, int, int, int]) -> np.ndarray | None:
    """[B or 1, H or 1, Q, K]. Keys that the mask is too short for are forbidden."""
    if attn_mask is None:
        return None
    Q, K = pairs[2:]
    missing = K - attn_mask.shape[-1]
    if missing > 0:
        widths = [(0, 0)] * (attn_mask.ndim - 1) + [(0, missing)]
        forbidden = False if attn_mask.dtype == bool else -np.inf
        attn_mask = np.pad(attn_mask, widths, constant_values=forbidden)
    lead = (1, 1, *attn_mask.shape[:-2])[-2:]
    return np.broadcast_to(attn_mask, (*lead, Q, K))


def offset(node: NodeCase, pairs: tuple[int, int, int, int]) -> Any:
    """The position of query 0: as many keys stand before the queries."""
    if "past_key" in node.inputs:
        return node.inputs["past_key"].shape[2]
    if "nonpad_kv_seqlen" in node.inputs:
        return node.inputs["nonpad_kv_seqlen"] - pairs[2]
    return 0


def causal(node: NodeCase, pairs: tuple[int, int, int, int]) -> Causal | None:
    return Causal(offset(node, pairs)) if node.attributes.get("is_causal") else None


def window(node: NodeCase, pairs: tuple[int, int, int, int]) -> SlidingWindow | None:
    sizes = [node.attributes.get(f"{side}_window_size", -1) for side in ("left", "right")]
    left, right = (None if size == -1 else size for size in sizes)
    return None if left is None and right is None else SlidingWindow(left, right, offset(node, pairs))


def lengths(node: NodeCase) -> KeyLengths | None:
    return KeyLengths(node.inputs["nonpad_kv_seqlen"]) if "nonpad_kv_seqlen" in node.inputs else None


def combine_masks(*masks: Any) -> Any:
    """What all of them allow; None if there is none."""
    both = None
    for mask in masks:
        both = mask if both is None else both if mask is None else both & mask
    return both


# --- outputs ----------------------------------------------------------------------------------------------------------


def attention_case(call: Call, operation: str = "attention") -> Case:
    inputs = {"query": call.query, "key": call.key, "value": call.value, "bias": call.bias}
    if operation != "attention":
        del inputs["value"]
    options = {"mask": call.mask, "scale": call.scale, "softcap": call.softcap}
    return Case(operation, dtype_name(call.query), present_arguments(inputs), present_arguments(options))


def rank_of_query(node: NodeCase) -> Any:
    return concatenate_heads if node.inputs["Q"].ndim == 3 else keep_array


def matrix(call: Call, mode: int) -> Translated:
    """qk_matmul_output: the weights, or the scores up to some step."""
    if mode == WEIGHTS:
        return Translated(attention_case(call, "attention_weights"))
    if mode == RAW:
        return scores(call._replace(mask=None, bias=None, softcap=None))
    return scores(call._replace(mask=None, bias=None) if mode == CAPPED else call)


def scores(call: Call) -> Translated:
    """The scores [B, H, Q, K], -inf where a pair is forbidden.

    The log-sum-exp over a single key is log(exp(score)), the score. So every key becomes a batch element of its own.
    """
    B, H, Q, K = call.pairs
    allowed = None if call.mask is None else materialize(call.mask, Q, K, batch=B, heads=H)
    single = call._replace(
        query=np.repeat(call.query, K, axis=0),
        key=one_key_each(call.key),
        mask=None if allowed is None else Dense(repeat_pairs(allowed, B)),
        bias=None if call.bias is None else repeat_pairs(call.bias, B),
    )

    def together(logsumexp: np.ndarray) -> np.ndarray:
        return np.moveaxis(logsumexp.reshape(B, K, H, Q), 1, -1)

    # Log-sum-exps have the dtype used inside, ONNX's scores that of the inputs.
    dtype = dtype_name(call.query)
    narrow = None if dtype == compute_dtype_name(dtype) else dtype
    return Translated(attention_case(single, "attention_logsumexp"), together, dtype=narrow)


def one_key_each(key: np.ndarray) -> np.ndarray:
    """[B, G, K, D] to [B * K, G, 1, D]."""
    B, G, K, D = key.shape
    return np.swapaxes(key, 1, 2).reshape(B * K, G, 1, D)


def repeat_pairs(pairs: np.ndarray, batch: int) -> np.ndarray:
    """[B or 1, H or 1, Q, K] to [B * K, H or 1, Q, 1]."""
    _, H, Q, K = pairs.shape
    full = np.broadcast_to(pairs, (batch, H, Q, K))
    return np.moveaxis(full, -1, 1).reshape(batch * K, H, Q, 1)
