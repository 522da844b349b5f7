"""The rules of SPEC.md as data: every identifier with its one-line statement.

SPEC.md states each rule in full, with its reason and the choices of well-known libraries.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MODEL_RULES", "RULES", "Rule"]


class Rule(NamedTuple):
    """One numbered decision."""

    id: str
    title: str
    statement: str


RULES = {
    rule.id: rule
    for rule in (
        Rule("MASK-1", "polarity", "A mask is boolean and True means that the query may attend to the key."),
        Rule("MASK-2", "description", "A description means the boolean array that it materialises to."),
        Rule("MASK-3", "causal", "Key j is allowed iff j <= i + offset; the offset may be left out only when Q = K."),
        Rule("MASK-4", "window", "Key j is allowed iff -left <= j - (i + offset) <= right, both ends included."),
        Rule("MASK-5", "shape", "A dense mask is [Q, K] or [B or 1, H or 1, Q, K]; every other shape is refused."),
        Rule("MASK-6", "combination", "All constraints hold together: & allows what both allow, | what either allows."),
        Rule("MASK-7", "isolation", "What a mask forbids reaches no output and no gradient, NaN included."),
        Rule("ATT-1", "scale", "scores = scale * (query . key), with scale 1 / sqrt(D) by default."),
        Rule("ATT-2", "softcap", "scores become c * tanh(scores / c) before bias and mask; c is positive."),
        Rule("ATT-3", "bias", "A bias is added after the softcap, in float32 or wider; -inf in it forbids the pair."),
        Rule("ATT-4", "masking", "Forbidden scores take no part in the arithmetic, whatever the size of the others."),
        Rule("ATT-5", "softmax", "Softmax over the allowed keys; a sink is one more logit, with no value."),
        Rule("ATT-6", "empty row", "A row that allows nothing has weights, output and gradients 0, log-sum-exp -inf."),
        Rule("ATT-7", "grouped heads", "Query head h reads key and value head h // (H / G); H is a multiple of G."),
        Rule("ATT-8", "shapes", "[B,H,Q,D], [B,G,K,D], [B,G,K,V] give [B,H,Q,V]; B, H, Q and K may be 0."),
        Rule("ATT-9", "dtype", "One floating dtype in and out, float32 or wider in between, one rounding at the end."),
        Rule(
            "ATT-10",
            "special values",
            "An attended NaN reaches what attends to it; large logits do not overflow, and equal ones weigh alike.",
        ),
        Rule("ATT-11", "dropout", "Weights are multiplied by the caller's keep mask and divided by 1 - rate."),
        Rule("ATT-12", "gradients", "The gradients of query, key, value, bias and sinks are part of the definition."),
        Rule("ATT-13", "determinism", "Same inputs, same bits; inputs are not changed, and results share no memory."),
        Rule("ATT-14", "companions", "Weights, log-sum-exp, and the exact merge of results over disjoint keys."),
        Rule("MHA-1", "projections", "x @ weight + bias with weight [in, out]; head h is the h-th block of columns."),
        Rule(
            "MHA-2", "separate heads",
            "Per-head projections side by side are the fused one; key and value widths are free.",
        ),
        Rule("MLA-1", "latent attention", "Keys and values of all heads from one latent, and one rotated key for all."),
        Rule("MLA-2", "absorbed", "Queries multiplied into the latents' space give the same, with no key of a head."),
        Rule("NORM-1", "layer norm", "(x - mean) / sqrt(variance + eps) * weight + bias, biased variance, eps 1e-5."),
        Rule("NORM-2", "precision", "Statistics and affine step in float32 or wider, one rounding at the output."),
        Rule("NORM-3", "constant row", "A constant row gives the bias exactly, also when it has one element."),
        Rule("NORM-4", "conditioning", "A mean far larger than the deviation costs no more than its conditioning."),
        Rule("NORM-5", "special values", "NaN or infinity in a row makes that row non-finite, and no other."),
        Rule("NORM-6", "gradients", "The gradients of x, weight and bias are part of the definition."),
        Rule("NORM-7", "variants", "rms_norm and standard_deviation_norm are functions of their own."),
        Rule("NORM-8", "1 + weight", "The weight of rms_norm is 1 + w where asked, added in the compute dtype."),
        Rule("POS-1", "sinusoidal", "sin(p / 10000^(2i/E)) in column 2i, cos of the same angle in column 2i + 1."),
        Rule("POS-2", "learned", "Row p of a table; a position past its end is refused."),
        Rule("POS-3", "rotary", "Pairs of columns turn by position * frequency, exact at any position up to 2^30."),
        Rule("POS-4", "frequencies", "base^(-2p / W), in five scalings, and the factor of sine and cosine."),
        Rule("POS-5", "alibi", "slope * (j - i) for query i and key j; slopes 2^(-8h/H), or the paper's code's."),
        Rule("POS-6", "relative buckets", "A bias from a table, by the bucket of j - i; logarithms' edges are exact."),
        Rule("EMB-1", "embedding", "Row lookup; an id outside the vocabulary is refused; times sqrt(E) if scaled."),
        Rule("FFN-1", "feed-forward", "activation(x @ W1 + b1) @ W2 + b2 with ReLU, GELU (erf or tanh) or SiLU."),
        Rule("FFN-2", "gated", "(activation(x @ W + b) * (x @ W1 + b1)) @ W2 + b2, the product rounded once."),
        Rule("ACT-1", "silu", "x * sigmoid(x) for every element, to its last digits for large negative x too."),
        Rule("LOSS-1", "cross-entropy", "log-sum-exp less the target's logit, mean over the targets that count."),
        Rule("LOSS-2", "nll", "The target's log-probability, negated, with the mean over the targets that count."),
        Rule("OPT-1", "adam", "Adam with bias correction, m / (sqrt(v) + eps); weight decay decoupled or coupled."),
        Rule("OPT-2", "sgd", "Momentum that takes the whole gradient from the first step on, Nesterov, weight decay."),
        Rule("OPT-3", "clipping", "Gradients times limit / norm where their norm exceeds the limit, else untouched."),
        Rule("MOE-1", "scores", "Logits and scores of all experts, in float32 or wider, never rounded to 16 bits."),
        Rule("MOE-2", "choice", "The largest of scores + choice bias, equal ones by the lower index; groups first."),
        Rule(
            "MOE-3", "weights", "The chosen scores, as they are, normalised, or softmax of their logits; times scale."
        ),
        Rule("MOE-4", "experts", "Results times weights, summed by ascending index, and the shared network's."),
        Rule("MOE-5", "independence", "A token's result depends on that token alone, unless experts have a capacity."),
        Rule("MOE-6", "auxiliary losses", "X * sum of share * mean probability; mean of squared log-sum-exps."),
    )
}  # fmt: skip
"""Rules of single operations."""

MODEL_RULES = {
    rule.id: rule
    for rule in (
        Rule("BLK-1", "residual", "Post-norm: x = norm(x + sublayer(x)); pre-norm: x = x + sublayer(norm(x))."),
        Rule(
            "BLK-2",
            "dropout sites",
            "Dropout acts where the caller passes a keep mask: five named sites, no others.",
        ),
        Rule("BLK-3", "other orders", "Norms around or after sublayers, parallel ones; windows and rotation by block."),
        Rule("TRF-1", "models", "Encoder, decoder and the layers around them, as parameters and a configuration say."),
        Rule("GEN-1", "generation", "Step by step with a cache gives what the whole forward pass gives."),
        Rule("OPT-4", "schedules", "Learning rates as closed forms of the step, which counts from 0."),
        Rule(
            "INIT-1", "initialisers", "Weights from random numbers that are given: the same numbers, the same weights."
        ),
        Rule("DIST-1", "whole", "The result over all ranks is attention of the whole, gradients included."),
        Rule("DIST-2", "mask of the whole", "A mask describes the whole, and each rank derives its part of it."),
        Rule("DIST-3", "layouts", "Any number of ranks, any lengths; a rank's part is stated by its positions."),
        Rule("DIST-4", "memory and traffic", "A rank holds O(T / R) numbers, and sends as many bytes as stated."),
        Rule("DIST-5", "failures", "All ranks refuse what they disagree on; a lost rank is an error, in time."),
        Rule(
            "DIST-6", "experts on ranks", "The result over all ranks is the mixture of the whole, gradients included."
        ),
        Rule("DIST-7", "models", "A model over ranks returns the positions and gradients of the whole."),
    )
}
"""Rules without probes: of blocks and models, which the judge compares step by step; of what tests hold alone."""
