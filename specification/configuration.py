"""What a model does that its parameters do not say, as one plain value, in enumerated choices.

A tutorial or library that departs from the paper is one of these values, never code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TypeGuard

from specification.dtypes import SMALLEST_EPS
from specification.rotary import Rotary

__all__ = ["Configuration"]

CHOICES = {
    "norm_order": ("post", "pre", "around", "after", "parallel"),
    "norm": ("layer_norm", "rms_norm", "rms_norm_plus_one", "standard_deviation_norm"),
    "activation": ("relu", "gelu", "gelu_tanh", "silu"),
    "empty_rows": ("zero", "mean", "nan"),
    "positions": ("none", "learned", "after_padding", "sinusoidal", "doubled"),
    "target_mask": ("none", "causal", "causal and real keys", "causal and real queries"),
    "pooling": ("max", "mean"),
}


SCALES = ("head_width", "model_width")
"""Names that `scale` may have in place of a number."""


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """What the self-attention of one block does its own way.

    window: (left, right), how many keys before and after its own a query sees, as in `SlidingWindow`; None for all.
    rotary: how queries and keys are rotated; None for not at all.
    """

    window: tuple[int, int] | None = None
    rotary: Rotary | None = None

    def __post_init__(self) -> None:
        window = self.window
        if window is not None and not (isinstance(window, tuple) and len(window) == 2 and all(map(is_count, window))):
            raise ValueError(f"window must be a pair of distances of at least 0 or None, got {window!r}")
        if not isinstance(self.rotary, Rotary | None):
            raise TypeError(f"rotary must be a Rotary or None, got {self.rotary!r}")


@dataclass(frozen=True, kw_only=True)
class ExpertChoice:
    """How mixtures of experts choose and weigh experts: keyword arguments of `mixture_of_experts` (MOE-1 to MOE-3)."""

    chosen: int
    scoring: str = "softmax"
    groups: int = 1
    chosen_groups: int = 1
    group_score: str = "two_largest"
    weighting: str = "normalized"
    scale: float = 1.0


@dataclass(frozen=True)
class Configuration:
    """Hashable and free of arrays, so that it can be a static argument under `jax.jit`. ValueError for other choices.

    norm_order: "post": x = norm(x + sublayer(x)); "pre": x = x + sublayer(norm(x)) (BLK-1); "around":
        x = x + norm(sublayer(norm(x))); "after": x = x + norm(sublayer(x)); "parallel": x = x + (attention(norm(x)) +
        feed_forward(norm(x))), with one norm or two (BLK-3).
    norm: "rms_norm_plus_one" is rms_norm with the weight 1 + w (NORM-8).
    scale: of the scores, those of attention to memory too: "head_width" is 1 / sqrt(D) (ATT-1), "model_width"
        1 / sqrt(E), or a number.
    softcap: of the same scores (ATT-2); None for none.
    attention_layers: of every block's self-attention, in order; a single one is that of all, none is as plain as can
        be.
    experts: of all blocks whose feed-forward network is a mixture of experts; None where there is none. They
        alone may have the activation "clamped_swiglu" (MOE-4).
    latent_eps: of the norms inside latent attentions (MLA-1), whatever norm_eps is.
    relative_furthest: the distance from which on all keys share a bucket of relative positions (POS-6).
    empty_rows: what a position gets that may attend to nothing (ATT-6).
    positions: what is added to the embedding: "none", rows of a "learned" table (POS-2), the same "after_padding",
        "sinusoidal" or with "doubled" exponent (POS-1).
    position_padding: the id p that positions "after_padding" skip, and None with all others. The n-th token that is not
        p, counted from 1, takes row p + n of the table, and every p takes row p, as in RoBERTa.
    scaled_embedding: whether rows are multiplied by sqrt(E) before that (EMB-1).
    source_padding, target_padding: ids of the tokens that fill up a sequence; None for none. Keys that hold them are
        masked, in the source always, in the target as target_mask says.
    target_mask: "causal", also with padded keys or with padded queries left out; "none" leaves it to the caller.
    pooling: how a classifier makes one vector out of a sequence.
    scaled_output: whether what the output layer is given is multiplied by 1 / sqrt(E).
    output_softcap: c > 0 squeezes logits into (-c, c) by c * tanh(logits / c); None for none.
    patch_size: P, of an image's patches [P, P]; None where there are no images.
    """

    num_heads: int
    norm_order: str = "post"
    norm: str = "layer_norm"
    norm_eps: float = 1e-5
    activation: str = "relu"
    scale: str | float = "head_width"
    empty_rows: str = "zero"
    positions: str = "sinusoidal"
    position_padding: int | None = None
    scaled_embedding: bool = False
    source_padding: int | None = None
    target_padding: int | None = None
    target_mask: str = "causal"
    pooling: str = "mean"
    softcap: float | None = None
    attention_layers: tuple[AttentionLayer, ...] = ()
    experts: ExpertChoice | None = None
    latent_eps: float = 1e-6
    relative_furthest: int = 128
    scaled_output: bool = False
    output_softcap: float | None = None
    patch_size: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            choices = CHOICES.get(field.name, ())
            choices += ("clamped_swiglu",) if field.name == "activation" else ()
            if choices and value not in choices:
                known = ", ".join(map(repr, choices))
                raise ValueError(f"{field.name} must be one of {known}, got {value!r}")
            if field.name.endswith("padding") and not (value is None or is_count(value)):
                raise ValueError(f"{field.name} must be the id of a token or None, got {value!r}")
        if (self.positions == "after_padding") == (self.position_padding is None):
            there = "needs a position_padding" if self.position_padding is None else "takes no position_padding"
            raise ValueError(f"positions={self.positions!r} {there}")
        for name in ("norm_eps", "latent_eps"):
            eps = getattr(self, name)
            if not is_real(eps):
                raise TypeError(f"{name} must be a real number, got {eps!r}")
            if not SMALLEST_EPS <= eps < float("inf"):
                raise ValueError(f"{name} must be finite and at least 2**-126, got {eps}")
        if not isinstance(self.experts, ExpertChoice | None):
            raise TypeError(f"experts must be an ExpertChoice or None, got {self.experts!r}")
        for name in ("scaled_embedding", "scaled_output"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if not is_count(self.num_heads) or self.num_heads == 0:
            raise ValueError(f"num_heads must be an integer of at least 1, got {self.num_heads!r}")
        self.check_numbers()

    def check_numbers(self) -> None:
        """Refuse scores, windows and sizes that no model can have."""
        named = isinstance(self.scale, str) and self.scale in SCALES
        if not named and not (is_real(self.scale) and abs(self.scale) < float("inf")):
            known = ", ".join(map(repr, SCALES))
            raise ValueError(f"scale must be one of {known} or a finite number, got {self.scale!r}")
        for name in ("softcap", "output_softcap"):
            value = getattr(self, name)
            if value is not None and not (is_real(value) and SMALLEST_EPS <= value < float("inf")):
                raise ValueError(f"{name} must be positive and finite or None, got {value!r}")
        given = self.attention_layers
        if not isinstance(given, tuple) or not all(isinstance(layer, AttentionLayer) for layer in given):
            raise TypeError(f"attention_layers must be a tuple of AttentionLayer, got {given!r}")
        for name in ("relative_furthest", "patch_size"):
            value = getattr(self, name)
            if not (name == "patch_size" and value is None) and (not is_count(value) or value == 0):
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.patch_size is not None and self.positions != "none":
            raise ValueError(f"images bring positions of their own, and positions={self.positions!r} has no place")

    def layers(self, blocks: int) -> tuple[AttentionLayer, ...]:
        """Give the attention layer of every block; ValueError for attention_layers of another number of blocks."""
        given = self.attention_layers or (AttentionLayer(),)
        if len(given) not in (1, blocks):
            raise ValueError(f"attention_layers has {len(given)} layers for {blocks} blocks")
        return given * blocks if len(given) == 1 else given


def is_count(value: object) -> TypeGuard[int]:
    """Tell whether a value is an integer of at least 0, and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


def is_real(value: object) -> TypeGuard[float]:
    """Tell whether a value is a real number, and no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)
