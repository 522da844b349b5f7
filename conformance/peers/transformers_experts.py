"""Hugging Face transformers: routers, mixtures of experts, and the loss that keeps routers in balance.

A router returns logits, weights and indices. Its scores, which it keeps to itself, are computed here from its logits by
its own line. Mixtures are whole modules, each with every implementation of experts that runs on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.adapters import make_peer
from conformance.peers.heads import fit_array
from conformance.peers.transformers_layers import ACTIVATIONS, module
from specification.parameters import GatedFeedForward
from specification.routing import Routing

if TYPE_CHECKING:
    import numpy as np
    import torch

    from conformance.cases.case import Case
    from specification.parameters import FeedForward, Linear, MixtureOfExperts


def make_config(x: torch.Tensor, router: Linear, chosen: int, **own: Any) -> SimpleNamespace:
    """The entries that all modules here read; parameters, which are put in for the call, have their own sizes."""
    X = router.weight.shape[1]
    config = SimpleNamespace(
        hidden_size=x.shape[-1], num_experts=X, num_local_experts=X, num_experts_per_tok=chosen, intermediate_size=1,
        moe_intermediate_size=1, n_shared_experts=1, router_jitter_noise=0.0, swiglu_alpha=1.702, swiglu_limit=7.0,
    )  # fmt: skip
    vars(config).update(own)
    return config


def refuse_bias(router: Linear) -> None:
    if router.bias is not None:
        raise NotImplementedError("this router has no bias")


def require_one(value: str, *choices: str) -> None:
    """NotImplementedError for a value of an option that the router does not have."""
    if value not in choices:
        raise NotImplementedError(f"this router has {' and '.join(choices)}, not {value}")


def zero_unless(array: torch.Tensor | None, like: torch.Tensor, *shape: int) -> torch.Tensor:
    """The array, or the zeros with which a module starts."""
    return like.new_zeros(shape) if array is None else array


def grouped_entries(groups: int, chosen_groups: int, scale: float, weighting: str) -> dict[str, Any]:
    """Of the config of a DeepSeek."""
    method = "greedy" if groups == 1 else "group_limited_greedy"
    return {
        "n_group": groups, "topk_group": chosen_groups, "topk_method": method, "routed_scaling_factor": scale,
        "norm_topk_prob": weighting == "normalized",
    }  # fmt: skip


EITHER = ("normalized", "scores")
"""What `norm_topk_prob` chooses between."""


# --- routers ----------------------------------------------------------------------------------------------------------


def call_router(
    family: str, kind: str, x: torch.Tensor, router: Linear, chosen: int, make_scores: Callable[..., Any],
    entries: dict[str, Any] | None = None, **own: Any,
) -> Routing:  # fmt: skip
    """What a router makes of tokens, which it is given in a row. entries: what it has beside its weight."""
    import torch

    layer = module(family, kind, make_config(x, router, chosen, **own))
    given = {"weight": router.weight.T} | (entries or {})
    logits, weights, indices = torch.func.functional_call(layer, given, (x.reshape(-1, x.shape[-1]),))
    results = (indices, weights, make_scores(logits))
    return Routing(*(result.reshape(*x.shape[:-1], result.shape[-1]) for result in results))


def softmax(logits: torch.Tensor) -> torch.Tensor:
    return logits.float().softmax(dim=-1)


def sigmoid(logits: torch.Tensor) -> torch.Tensor:
    return logits.sigmoid()


@declare()
def mixtral_router(x: torch.Tensor, router: Linear, *, chosen: int) -> Routing:
    """`MixtralTopKRouter`."""
    refuse_bias(router)
    return call_router("mixtral", "MixtralTopKRouter", x, router, chosen, softmax)


@declare()
def qwen3_router(x: torch.Tensor, router: Linear, *, chosen: int, weighting: str = "normalized") -> Routing:
    """`Qwen3MoeTopKRouter`, with `norm_topk_prob` or without."""
    refuse_bias(router)
    require_one(weighting, *EITHER)
    normalized = weighting == "normalized"
    return call_router("qwen3_moe", "Qwen3MoeTopKRouter", x, router, chosen, softmax, norm_topk_prob=normalized)


@declare()
def gpt_oss_router(
    x: torch.Tensor, router: Linear, *, chosen: int, scoring: str = "softmax", weighting: str = "normalized"
) -> Routing:
    """`GptOssTopKRouter`, which chooses by logits and always has a bias."""
    require_one(scoring, "none")
    require_one(weighting, "softmax")
    entries = {"bias": zero_unless(router.bias, x, router.weight.shape[1])}
    return call_router("gpt_oss", "GptOssTopKRouter", x, router, chosen, lambda logits: logits, entries)


@declare()
def deepseek_v2_router(
    x: torch.Tensor, router: Linear, *, chosen: int, groups: int = 1, chosen_groups: int = 1,
    group_score: str = "two_largest", weighting: str = "normalized", scale: float = 1.0,
) -> Routing:  # fmt: skip
    """`DeepseekV2TopkRouter`, with either of its `topk_method`. Its config's `norm_topk_prob` is not read."""
    refuse_bias(router)
    require_one(weighting, "scores")
    if groups > 1:
        require_one(group_score, "largest")
    own = grouped_entries(groups, chosen_groups, scale, weighting)
    return call_router("deepseek_v2", "DeepseekV2TopkRouter", x, router, chosen, softmax, **own)


@declare()
def deepseek_v3_router(
    x: torch.Tensor, router: Linear, *, chosen: int, scoring: str = "softmax", choice_bias: torch.Tensor | None = None,
    groups: int = 1, chosen_groups: int = 1, weighting: str = "normalized", scale: float = 1.0,
) -> Routing:  # fmt: skip
    """`DeepseekV3TopkRouter`, which always has a choice bias."""
    refuse_bias(router)
    require_one(scoring, "sigmoid")
    require_one(weighting, *EITHER)
    own = grouped_entries(groups, chosen_groups, scale, weighting)
    entries = {"e_score_correction_bias": zero_unless(choice_bias, x, router.weight.shape[1])}
    return call_router("deepseek_v3", "DeepseekV3TopkRouter", x, router, chosen, sigmoid, entries, **own)


# --- mixtures ---------------------------------------------------------------------------------------------------------


def call_mixture(
    family: str, kind: str, parameters: MixtureOfExperts, x: torch.Tensor, chosen: int, implementation: str,
    entries: dict[str, Any], **own: Any,
) -> Any:  # fmt: skip
    """The output [..., E] of a module, which is given one batch element. entries: of the module, by their names."""
    import torch

    own |= {"mlp_bias": False, "_experts_implementation": implementation}
    layer = module(family, kind, make_config(x, parameters.router, chosen, **own))
    found = torch.func.functional_call(layer, entries, (x.reshape(1, -1, x.shape[-1]),))
    output = found[0] if isinstance(found, tuple) else found
    return output.reshape(x.shape)


def require_gate(network: FeedForward | GatedFeedForward | None) -> GatedFeedForward:
    if not isinstance(network, GatedFeedForward):
        raise NotImplementedError("this network is gated")
    return network


def joined_experts(experts: GatedFeedForward) -> dict[str, torch.Tensor]:
    """Gate and inner projection side by side, [X, 2F, E]."""
    import torch

    if experts.gate.bias is not None:
        raise NotImplementedError("these experts have no biases")
    both = torch.cat([experts.gate.weight, experts.inner.weight], dim=-1)
    return {"experts.gate_up_proj": both.mT, "experts.down_proj": experts.outer.weight.mT}


def alternating_experts(experts: GatedFeedForward) -> dict[str, torch.Tensor]:
    """Gate and inner projection in turn, [X, E, 2F], with biases."""
    import torch

    gate, inner, outer = experts
    X, F, E = outer.weight.shape
    biases = [zero_unless(side.bias, side.weight, X, F) for side in (gate, inner)]
    return {
        "experts.gate_up_proj": torch.stack([gate.weight, inner.weight], dim=-1).flatten(-2),
        "experts.gate_up_proj_bias": torch.stack(biases, dim=-1).flatten(-2),
        "experts.down_proj": outer.weight,
        "experts.down_proj_bias": zero_unless(outer.bias, outer.weight, X, E),
    }


MIXTRAL_ROUNDS = {"scores": "inputs", "combined": "inputs"}
"""Conventions of `MixtralSparseMoeBlock` in 16 bits."""


def adapt_mixtral(implementation: str, **declared: Any) -> Callable[..., Any]:
    @declare(conventions=MIXTRAL_ROUNDS, **declared)
    def mixture_of_experts(
        parameters: MixtureOfExperts, x: torch.Tensor, *, chosen: int, activation: str = "silu"
    ) -> Any:
        """`MixtralSparseMoeBlock`."""
        refuse_bias(parameters.router)
        entries = {"gate.weight": parameters.router.weight.T} | joined_experts(require_gate(parameters.experts))
        own = {"hidden_act": ACTIVATIONS.get(activation, activation)}
        return call_mixture("mixtral", "MixtralSparseMoeBlock", parameters, x, chosen, implementation, entries, **own)

    return mixture_of_experts


def adapt_deepseek(implementation: str, **declared: Any) -> Callable[..., Any]:
    @declare(conventions={"combined": "inputs"}, **declared)
    def mixture_of_experts(
        parameters: MixtureOfExperts, x: torch.Tensor, *, chosen: int, activation: str = "silu",
        scoring: str = "softmax", groups: int = 1, chosen_groups: int = 1, weighting: str = "normalized",
        scale: float = 1.0,
    ) -> Any:  # fmt: skip
        """`DeepseekV3MoE`, which always has a shared network and a choice bias."""
        router, experts, choice_bias, shared = parameters
        refuse_bias(router)
        require_one(scoring, "sigmoid")
        require_one(weighting, *EITHER)
        entries = {"gate.weight": router.weight.T} | joined_experts(require_gate(experts))
        entries["gate.e_score_correction_bias"] = zero_unless(choice_bias, x, router.weight.shape[1])
        for name, side in zip(("gate_proj", "up_proj", "down_proj"), require_gate(shared), strict=True):
            entries[f"shared_experts.{name}.weight"] = side.weight.T
        own = grouped_entries(groups, chosen_groups, scale, weighting)
        own["hidden_act"] = ACTIVATIONS.get(activation, activation)
        return call_mixture("deepseek_v3", "DeepseekV3MoE", parameters, x, chosen, implementation, entries, **own)

    return mixture_of_experts


def adapt_gpt_oss(implementation: str, **declared: Any) -> Callable[..., Any]:
    @declare(conventions={"scores": "inputs", "weights": "inputs", "combined": "inputs"}, **declared)
    def mixture_of_experts(
        parameters: MixtureOfExperts, x: torch.Tensor, *, chosen: int, activation: str = "silu"
    ) -> Any:
        """`GptOssMLP`, whose softmax over the chosen logits is the softmax over all of them, normalised."""
        router = parameters.router
        entries = {"router.weight": router.weight.T} | alternating_experts(require_gate(parameters.experts))
        entries["router.bias"] = zero_unless(router.bias, x, router.weight.shape[1])
        return call_mixture("gpt_oss", "GptOssMLP", parameters, x, chosen, implementation, entries)

    return mixture_of_experts


GROUPED: dict[str, Any] = {"dtypes": ("float32", "bfloat16", "float16"), "width_multiple": 8}
"""What PyTorch's grouped product takes on a CPU: no float64, and rows of whole blocks of 16 bytes."""
mixtral_eager, mixtral_batched = adapt_mixtral("eager"), adapt_mixtral("batched_mm")
mixtral_grouped = adapt_mixtral("grouped_mm", **GROUPED)
deepseek_eager, deepseek_batched = adapt_deepseek("eager"), adapt_deepseek("batched_mm")
deepseek_grouped = adapt_deepseek("grouped_mm", **GROUPED)
gpt_oss_eager, gpt_oss_batched = adapt_gpt_oss("eager"), adapt_gpt_oss("batched_mm")
gpt_oss_grouped = adapt_gpt_oss("grouped_mm", **GROUPED)


# --- the loss ---------------------------------------------------------------------------------------------------------


@declare()
def balance(router_logits: torch.Tensor, *, chosen: int, token_mask: torch.Tensor | None = None) -> Any:
    """`load_balancing_loss_func` of Mixtral, of one layer."""
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    X = router_logits.shape[-1]
    return load_balancing_loss_func((router_logits.reshape(-1, X),), X, chosen, token_mask)


# --- rows -------------------------------------------------------------------------------------------------------------


def takes_groups(score: str) -> Callable[[Case], bool]:
    """Calls without groups, or whose groups have this score."""
    return lambda case: case.options.get("groups", 1) == 1 or case.options.get("group_score", "two_largest") == score


def takes_routing(*scorings: str, weightings: tuple[str, ...] = ("normalized",), biased: bool = False) -> Any:
    """Calls that score and weigh in one of these ways, by default as where nothing is said."""

    def takes(case: Case) -> bool:
        scoring, weighting = case.options.get("scoring", "softmax"), case.options.get("weighting", "normalized")
        return scoring in scorings and weighting in weightings and (biased or "router.bias" not in case.inputs)

    return takes


def takes_all(*conditions: Callable[[Case], bool]) -> Callable[[Case], bool]:
    return lambda case: all(condition(case) for condition in conditions)


def is_clamped(case: Case) -> bool:
    return case.options.get("activation") == "clamped_swiglu"


def is_plain_gate(case: Case) -> bool:
    """Experts are gated by a function of transformers'."""
    return "experts.gate.weight" in case.inputs and not is_clamped(case)


def has_shared(case: Case) -> bool:
    return "shared.outer.weight" in case.inputs


def has_no_choice_bias(case: Case) -> bool:
    return "choice_bias" not in case.inputs


def fit_mixture(*left_out: str, square: bool = True) -> Callable[[Case], Case]:
    """Calls without parameters of networks whose names begin or end like this, which change no choice.

    square: outputs get the width of tokens.
    """

    def fit(case: Case) -> Case:
        if case.operation != "mixture_of_experts":
            return case
        inputs, cotangents = dict(case.inputs), dict(case.cotangents)
        for name in case.inputs:
            if name.startswith(("experts.", "shared.")):
                if name.startswith(left_out) or name.endswith(left_out):
                    del inputs[name]
                elif square and ".outer." in name:
                    inputs[name] = fit_width(inputs[name], case)
        if square and "output" in cotangents:
            cotangents["output"] = fit_width(cotangents["output"], case)
        return replace(case, inputs=inputs, cotangents=cotangents)

    return fit


def fit_width(array: np.ndarray, case: Case) -> np.ndarray:
    return fit_array(array, (*array.shape[:-1], case.inputs["x"].shape[-1]))


peer = partial(make_peer, "transformers ", __name__, "torch", ("transformers", "torch"))
DEEPSEEK_V3 = takes_all(takes_routing("sigmoid", weightings=EITHER), takes_groups("two_largest"))
MIXTURES: dict[str, tuple[str, Callable[[Case], bool], Callable[[Case], Case]]] = {
    "MixtralSparseMoeBlock": (
        "mixtral", takes_all(takes_routing("softmax"), has_no_choice_bias, is_plain_gate),
        fit_mixture(".bias", "shared."),
    ),
    "DeepseekV3MoE": ("deepseek", takes_all(DEEPSEEK_V3, is_plain_gate, has_shared), fit_mixture(".bias")),
    "GptOssMLP": (
        "gpt_oss", takes_all(takes_routing("softmax", biased=True), has_no_choice_bias, is_clamped),
        fit_mixture("shared."),
    ),
}  # fmt: skip
"""By the module: how its adapters' names begin, what it takes, and how calls are changed for it."""
PEERS = (
    peer("MixtralTopKRouter", "mixtral_router", "route", takes=takes_routing("softmax")),
    peer("Qwen3MoeTopKRouter", "qwen3_router", "route", takes=takes_routing("softmax", weightings=EITHER)),
    peer("GptOssTopKRouter", "gpt_oss_router", "route",
         takes=takes_routing("none", weightings=("softmax",), biased=True)),
    peer("DeepseekV2TopkRouter", "deepseek_v2_router", "route",
         takes=takes_all(takes_routing("softmax", weightings=("scores",)), takes_groups("largest"))),
    peer("DeepseekV3TopkRouter", "deepseek_v3_router", "route", takes=DEEPSEEK_V3),
    *(
        peer(f"{kind}, {implementation}", f"{name}_{implementation.removesuffix('_mm')}", "mixture_of_experts",
             takes=takes, fitted=fitted)
        for kind, (name, takes, fitted) in MIXTURES.items()
        for implementation in ("eager", "batched_mm", "grouped_mm")
    ),
    peer("load_balancing_loss_func", "balance", "load_balancing_loss"),
)  # fmt: skip
