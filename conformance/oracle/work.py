"""What ball arithmetic costs, which works on one number at a time.

float64 is drawn only where `affordable` says that a case of such sizes takes about a second at most.
"""

from __future__ import annotations

from collections.abc import Callable

AFFORDABLE = 5e6
"""Work of 0.6 seconds on one core, and of a second with every feature of attention."""


def attention_work(passes: int, gradients: bool, *, B: int, H: int, G: int, Q: int, K: int, D: int, V: int = 0) -> int:
    pairs, entries = B * H * Q * K, B * H * (Q + K) * (D + V)
    outputs = B * H * Q * V if V else pairs
    return pairs * (passes * (D + V) + (32 if gradients else 16)) + entries * (8 if gradients else 2) + 4 * outputs


def merge_work(passes: int, gradients: bool, *, B: int, H: int, Q: int, V: int, parts: int) -> int:
    return B * H * Q * parts * (V * (25 if gradients else 8) + (30 if gradients else 12))


def multi_head_work(
    passes: int, gradients: bool, *, B: int, H: int, G: int, Q: int, K: int, D: int, V: int, E: int
) -> float:
    rows = {"query": (Q, H * D), "key": (K, G * D), "value": (K, G * V), "output": (Q, H * V)}
    parameters = E * sum(columns for _, columns in rows.values()) * (15 if gradients else 4)
    # flint multiplies matrices faster than single balls.
    products = 0.4 * passes * B * E * sum(length * columns for length, columns in rows.values())
    inputs = B * E * (2 * Q + 2 * K) * (8 if gradients else 3)
    inner = attention_work(passes, gradients, B=B, H=H, G=G, Q=Q, K=K, D=D, V=V)
    return parameters + products + inputs + inner


def norm_work(passes: int, gradients: bool, *, rows: int, width: int) -> int:
    return rows * width * (55 if gradients else 25) + width * (20 if gradients else 3)


def feed_forward_work(passes: int, gradients: bool, *, rows: int, E: int, F: int, out: int) -> int:
    hidden = rows * F * (passes * (E + out) + (125 if gradients else 70))
    return hidden + (E * F + F * out + rows * (E + out)) * (10 if gradients else 4)


def gated_feed_forward_work(passes: int, gradients: bool, *, rows: int, E: int, F: int, out: int) -> int:
    twice = rows * F * E * passes + (E * F) * (10 if gradients else 4)
    return feed_forward_work(passes, gradients, rows=rows, E=E, F=F, out=out) + twice + rows * F * 10


def lookup_work(passes: int, gradients: bool, *, N: int, E: int, rows: int) -> int:
    return N * E * (8 if gradients else 2) + rows * E * (14 if gradients else 8)


def sinusoidal_work(passes: int, gradients: bool, *, rows: int, width: int) -> int:
    return rows * width * 20


def rotary_frequencies_work(passes: int, gradients: bool, *, width: int) -> int:
    return width * 100


def silu_work(passes: int, gradients: bool, *, rows: int) -> int:
    return rows * (110 if gradients else 50)


def clip_by_global_norm_work(passes: int, gradients: bool, *, rows: int) -> int:
    return rows * 30


def relative_position_bias_work(passes: int, gradients: bool, *, pairs: int) -> int:
    return pairs * (14 if gradients else 8)


def nll_loss_work(passes: int, gradients: bool, *, rows: int, classes: int) -> int:
    return rows * classes * (40 if gradients else 15)


def adam_step_work(passes: int, gradients: bool, *, rows: int) -> int:
    return rows * 120


def rotary_embedding_work(passes: int, gradients: bool, *, numbers: int, angles: int) -> int:
    return numbers * (30 if gradients else 14) + angles * 60


def alibi_bias_work(passes: int, gradients: bool, *, pairs: int) -> int:
    return pairs * 20


def cross_entropy_work(passes: int, gradients: bool, *, rows: int, classes: int) -> int:
    return rows * classes * (120 if gradients else 50)


def sgd_step_work(passes: int, gradients: bool, *, rows: int) -> int:
    return rows * 60


WORK: dict[str, Callable[..., float]] = {
    "attention": attention_work,
    "attention_weights": attention_work,
    "attention_logsumexp": attention_work,
    "merge_attention": merge_work,
    "multi_head_attention": multi_head_work,
    "layer_norm": norm_work,
    "rms_norm": norm_work,
    "standard_deviation_norm": norm_work,
    "feed_forward": feed_forward_work,
    "gated_feed_forward": gated_feed_forward_work,
    "embedding": lookup_work,
    "learned_positions": lookup_work,
    "sinusoidal_positions": sinusoidal_work,
    "alibi_bias": alibi_bias_work,
    "relative_position_bias": relative_position_bias_work,
    "adam_step": adam_step_work,
    "clip_by_global_norm": clip_by_global_norm_work,
    "cross_entropy": cross_entropy_work,
    "nll_loss": nll_loss_work,
    "rotary_embedding": rotary_embedding_work,
    "rotary_frequencies": rotary_frequencies_work,
    "sgd_step": sgd_step_work,
    "silu": silu_work,
}
"""From how often each product of matrices is taken, whether there are gradients, and the sizes as keywords."""


def affordable(operation: str, *, gradients: bool, **sizes: int) -> bool:
    """Whether ball arithmetic evaluates a case in about a second at most. Sizes as in `ball_work`."""
    return ball_work(operation, gradients=gradients, **sizes) <= AFFORDABLE


def ball_work(operation: str, *, gradients: bool, **sizes: int) -> float:
    """An estimate of the work of ball arithmetic, in multiplications of two balls (0.12 microseconds each).

    sizes:
        attention: B, H, G, Q, K, D, V; attention_weights, attention_logsumexp: the same without V
        merge_attention: B, H, Q, V, parts
        multi_head_attention: B, H, G, Q, K, D, V, E (the model's width)
        layer_norm, rms_norm, standard_deviation_norm: rows, width
        feed_forward, gated_feed_forward: rows, E, F (the inner width), out (the output's width)
        embedding, learned_positions: N (rows of the table), E, rows (taken)
        sinusoidal_positions: rows, width
        alibi_bias, relative_position_bias: pairs (of queries and keys, in all heads)
        rotary_embedding: numbers (of x), angles; rotary_frequencies: width
        cross_entropy, nll_loss: rows, classes
        silu, adam_step, sgd_step, clip_by_global_norm: rows (all numbers)

    The factors are measured times: of exp, erfc and quotients, and of turning numbers into balls and back.
    """
    return WORK[operation](3 if gradients else 1, gradients, **sizes)
