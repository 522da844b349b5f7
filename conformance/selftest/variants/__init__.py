"""Honest implementations written in other ways than the definition: what the bounds must allow, and no more.

A reader finds here how far implementations may differ and still conform: sums in every order, blocks with a running
maximum, exp2, scales in every place, statistics in one pass. Each says in its declaration where it rounds to fewer
digits. `conformance.selftest.tightness` climbs towards the largest error that they make, in units of its bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from conformance.checks.levels import STRICT
from conformance.judge.checking import check
from conformance.judge.report import Report
from conformance.subjects.callables import Target
from conformance.subjects.subject import Subject


@dataclass(frozen=True)
class Variant:
    """One function, for one operation, in one framework's arrays. What it declares is written at the function.

    place: module and name within this package, "module:name". A framework is loaded when one of its functions is.
    """

    name: str
    place: str
    operation: str = "attention"
    arrays: str = "numpy"

    @property
    def target(self) -> str:
        return f"conformance.selftest.variants.{self.place}"

    @property
    def title(self) -> str:
        """Unlike the name, no other variant's."""
        return f"{self.operation}, {self.name} ({self.arrays})"

    def check(self, **options: Any) -> Report:
        """`conformance.check` of it."""
        options.setdefault("profile", STRICT)
        return check(self.target, self.operation, arrays=self.arrays, name=self.title, **options)

    def subject(self) -> Subject:
        return Target(self.target, self.operation, self.arrays, name=self.title).make()


VARIANTS = (
    Variant("summed backwards", "torch_rounded:summed_backwards", arrays="torch"),
    Variant("online softmax, blocks of 32, exp2", "torch_attention:online_32", arrays="torch"),
    Variant("exp of log-softmax, split scale", "torch_attention:log_softmax", arrays="torch"),
    Variant("padded to tiles of 16 by 256", "torch_attention:padded_16_by_256", arrays="torch"),
    Variant("parts of 64 keys, merged", "torch_attention:split_64", arrays="torch"),
    Variant("weights in bfloat16", "torch_rounded:bfloat16_weights", arrays="torch"),
    Variant("products in TF32", "torch_rounded:tf32_products", arrays="torch"),
    Variant("products and weights in the inputs' dtype", "torch_rounded:products_of_inputs", arrays="torch"),
    Variant("keys repeated in the inputs' dtype", "torch_attention:repeated_in_inputs", arrays="torch"),
    Variant("scale on the key, exp2", "jax_attention:scale_on_key", arrays="jax"),
    Variant("exp(score - log-sum-exp)", "torch_companions:weights_by_logsumexp", "attention_weights", "torch"),
    Variant("logarithm in base 2", "torch_companions:logsumexp_base_2", "attention_logsumexp", "torch"),
    Variant("merged in sequence", "torch_companions:merge_in_sequence", "merge_attention", "torch"),
    Variant("backwards as blocked kernels", "torch_layers:multi_head_flash", "multi_head_attention", "torch"),
    Variant("products in TF32", "torch_layers:multi_head_in_tf32", "multi_head_attention", "torch"),
    Variant("Welford", "numpy_layers:layer_norm_welford", "layer_norm"),
    Variant("one pass, shifted", "torch_norms:layer_norm_one_pass", "layer_norm", "torch"),
    Variant("chunks of 1024 columns, blocks of 128 rows", "torch_norms:layer_norm_chunks", "layer_norm", "torch"),
    Variant("rounded before the weight", "torch_norms:rms_norm_rounded", "rms_norm", "torch"),
    Variant("rsqrt folded into the weight", "torch_norms:rms_norm_rsqrt", "rms_norm", "torch"),
    Variant("Welford", "numpy_layers:standard_deviation_welford", "standard_deviation_norm"),
    Variant("in the dtype of the arithmetic", "numpy_layers:sinusoidal_in_compute_dtype", "sinusoidal_positions"),
    Variant("torch.nn.functional", "torch_layers:embedding_lookup", "embedding", "torch"),
    Variant("inner axis in chunks of 256", "torch_layers:feed_forward_chunks", "feed_forward", "torch"),
    Variant("torch.nn.functional", "torch_layers:gated_functional", "gated_feed_forward", "torch"),
    Variant("pairs in the order of scores", "torch_experts:route_by_functional", "route", "torch"),
    Variant("one product for all", "torch_experts:mixture_by_gathering", "mixture_of_experts", "torch"),
    Variant("tokens sorted by expert", "torch_mixtures:sorted_tokens", "mixture_of_experts", "torch"),
    Variant("one-hot buffers", "torch_mixtures:one_hot_buffers", "mixture_of_experts", "torch"),
    Variant("all experts for every token", "torch_mixtures:dense_experts", "mixture_of_experts", "torch"),
    Variant("router in the inputs' dtype", "torch_mixtures:rounded_router", "mixture_of_experts", "torch"),
    Variant("absorbed", "torch_mixtures:absorbed_attention", "latent_attention", "torch"),
    Variant("running maximum, tiles of 128, exp2", "torch_losses:cross_entropy_in_tiles", "cross_entropy", "torch"),
    Variant("torch.nn.functional", "torch_losses:cross_entropy", "cross_entropy", "torch"),
    Variant("torch.nn.functional", "torch_losses:nll_loss", "nll_loss", "torch"),
    Variant("averages by differences, decay as a term", "numpy_optimizers:adam_by_differences", "adam_step"),
    Variant("Nesterov written out", "numpy_optimizers:sgd_written_out", "sgd_step"),
    Variant("norm of norms in chains", "numpy_optimizers:clip_by_norms_of_arrays", "clip_by_global_norm"),
)
"""In reading order."""
