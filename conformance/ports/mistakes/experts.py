"""Mistakes of mixtures of experts, and of latent attention."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from conformance.ports.computation import Step, copy_functions
from conformance.ports.mistakes.attention import CONFIGURATION as ATTENTION_CONFIGURATION
from conformance.ports.mistakes.mistake import StepChange, Topic
from conformance.ports.mistakes.networks import CONFIGURATION as NETWORK_CONFIGURATION
from reference_numpy import blocks, mixture_of_experts, route
from reference_numpy.multi_head_attention import linear
from specification.configuration import Configuration, ExpertChoice
from specification.parameters import FeedForward, LatentAttention, Linear, MixtureOfExperts, Norm, mapped
from specification.rotary import Rotation

# The package has functions of the second one's name.
expert_network = importlib.import_module("reference_numpy.experts").expert_network
LATENT_ATTENTION = importlib.import_module("reference_numpy.latent_attention")
project_latents, project_latent_queries = LATENT_ATTENTION.project_latents, LATENT_ATTENTION.project_latent_queries

# --- mixtures of experts ----------------------------------------------------------------------------------------------

EXPERTS = Topic("experts", "MOE-4", ("transform",))
PARAMETERS = 0


def change_mixture(change: Callable[[Any], Any]) -> StepChange:
    """Change the parameters of mixtures; other networks, and mixtures that do not allow it, stay as they are."""

    def changed(step: Step) -> Step:
        parameters = step.arguments[PARAMETERS]
        return step.argument(PARAMETERS, change(parameters)) if isinstance(parameters, MixtureOfExperts) else step

    return changed


def change_choice(change: Callable[[ExpertChoice], dict[str, Any]]) -> StepChange:
    """Change how experts are chosen and weighed, by fields of the configuration's choice."""

    def changed(step: Step) -> Step:
        configuration: Configuration = step.arguments[NETWORK_CONFIGURATION]
        if not isinstance(step.arguments[PARAMETERS], MixtureOfExperts) or configuration.experts is None:
            return step
        other = replace(configuration.experts, **change(configuration.experts))
        return step.argument(NETWORK_CONFIGURATION, replace(configuration, experts=other))

    return changed


def set_choice(**fields: Any) -> StepChange:
    return change_choice(lambda choice: fields)


def replace_mixture(
    function: Callable[[MixtureOfExperts, np.ndarray, Configuration, dict[str, Any]], Any],
) -> StepChange:
    """Compute mixtures by a function of parameters, x, configuration and the options of `mixture_of_experts`."""

    def transform(p: Any, x: np.ndarray, dropout: Any, configuration: Configuration) -> Any:
        assert configuration.experts is not None  # a block has checked it
        options = asdict(configuration.experts) | {"activation": configuration.activation}
        return function(p, x, configuration, options)

    def changed(step: Step) -> Step:
        mixed = isinstance(step.arguments[PARAMETERS], MixtureOfExperts)
        return step._replace(function=transform) if mixed else step

    return changed


def repeat_shared(p: MixtureOfExperts, x: np.ndarray, configuration: Configuration, options: dict[str, Any]) -> Any:
    """Add the shared expert once for each chosen one."""
    if p.shared is None:
        return mixture_of_experts(p, x, **options)
    shared = expert_network(p.shared, x, configuration.activation)
    return mixture_of_experts(p._replace(shared=None), x, **options) + options["chosen"] * shared


def scale_shared(p: MixtureOfExperts, x: np.ndarray, configuration: Configuration, options: dict[str, Any]) -> Any:
    return options["scale"] * mixture_of_experts(p, x, **options | {"scale": 1.0})


def weigh_by_preferences(
    p: MixtureOfExperts, x: np.ndarray, configuration: Configuration, options: dict[str, Any]
) -> Any:
    """Leave the choice bias in the weights: scores of sigmoids and the bias, of the chosen experts."""
    of_choice = {name: options[name] for name in ("chosen", "scoring", "groups", "chosen_groups", "group_score")}
    routing = route(x, p.router, choice_bias=p.choice_bias, weighting="scores", **of_choice)
    bias = 0 if p.choice_bias is None else p.choice_bias[routing.indices]
    weights = routing.weights + bias
    if options["weighting"] == "normalized":
        weights = weights / np.sum(weights, axis=-1, keepdims=True)
    return add_experts(p, x, configuration, routing.indices, options["scale"] * weights)


def add_experts(
    p: MixtureOfExperts, x: np.ndarray, configuration: Configuration, indices: np.ndarray, weights: np.ndarray
) -> Any:
    """The sum of experts by their indices and weights, and the shared one."""
    output: Any = 0 if p.shared is None else expert_network(p.shared, x, configuration.activation)
    for expert in range(p.router.weight.shape[1]):
        own = mapped(lambda stack, expert=expert: stack[expert], p.experts)
        weight = np.sum(np.where(indices == expert, weights, 0), axis=-1, keepdims=True)
        output = output + weight * expert_network(own, x, configuration.activation)
    return output


def drop_choice_bias(p: MixtureOfExperts) -> MixtureOfExperts:
    return p._replace(choice_bias=None)


def drop_router_bias(p: MixtureOfExperts) -> MixtureOfExperts:
    return p._replace(router=p.router._replace(bias=None))


def swap_gate(p: MixtureOfExperts) -> MixtureOfExperts:
    experts: Any = p.experts
    if isinstance(experts, FeedForward):
        return p
    return p._replace(experts=experts._replace(gate=experts.inner, inner=experts.gate))


def regroup_columns(interleaved: bool) -> Callable[[MixtureOfExperts], MixtureOfExperts]:
    """Read gate and inner projection of a fused entry in halves where they alternate, or the other way."""

    def read(gate: np.ndarray, inner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if interleaved:
            both = np.concatenate([gate, inner], axis=-1)
            return both[..., ::2], both[..., 1::2]
        both = np.stack([gate, inner], axis=-1).reshape(*gate.shape[:-1], -1)
        return both[..., : gate.shape[-1]], both[..., gate.shape[-1] :]

    def change(p: MixtureOfExperts) -> MixtureOfExperts:
        experts: Any = p.experts
        if isinstance(experts, FeedForward):
            return p
        gate, inner = read(experts.gate.weight, experts.inner.weight)
        gate_bias, inner_bias = experts.gate.bias, experts.inner.bias
        if gate_bias is not None:
            gate_bias, inner_bias = read(gate_bias, inner_bias)
        sides = {"gate": type(experts.gate)(gate, gate_bias), "inner": type(experts.inner)(inner, inner_bias)}
        return p._replace(experts=experts._replace(**sides))

    return change


def replace_experts(change: Callable[[np.ndarray], np.ndarray]) -> StepChange:
    """Change every stack of the experts' parameters."""
    return change_mixture(lambda p: p._replace(experts=mapped(change, p.experts)))


def drop_chosen(p: MixtureOfExperts, x: np.ndarray, configuration: Configuration, options: dict[str, Any]) -> Any:
    return 0 * x if p.shared is None else expert_network(p.shared, x, configuration.activation)


def drop_clamps(p: MixtureOfExperts, x: np.ndarray, configuration: Configuration, options: dict[str, Any]) -> Any:
    if configuration.activation != "clamped_swiglu":
        return mixture_of_experts(p, x, **options)
    return mixture_of_experts(p, x, **options | {"activation": "silu"})


SCORINGS = {"softmax": "a softmax over all experts", "sigmoid": "sigmoids", "none": "the logits themselves"}
WEIGHTINGS = {
    "scores": "the chosen scores as they are",
    "normalized": "the chosen scores divided by their sum",
    "softmax": "a softmax over the chosen logits",
}
GROUPS = {"largest": "their largest score", "two_largest": "the sum of their two largest scores"}
MIXTURES = (
    *(
        EXPERTS.entry(f"scores-{name}", f"scores are {says}", set_choice(scoring=name), "MOE-1")
        for name, says in SCORINGS.items()
    ),
    *(
        EXPERTS.entry(f"weights-{name}", f"the weights of experts are {says}", set_choice(weighting=name), "MOE-3")
        for name, says in WEIGHTINGS.items()
    ),
    *(
        EXPERTS.entry(name, says, change_choice(change), rule)
        for name, says, change, rule in (
            ("one-less", "one expert less is chosen", lambda c: {"chosen": c.chosen - 1}, "MOE-2"),
            ("one-more", "one expert more is chosen", lambda c: {"chosen": c.chosen + 1}, "MOE-2"),
            ("no-scale", "the factor of the weights is left out", lambda c: {"scale": 1.0}, "MOE-3"),
            ("scaled-twice", "the factor of the weights is applied twice", lambda c: {"scale": c.scale**2}, "MOE-3"),
            ("no-groups", "groups of experts are ignored", lambda c: {"groups": 1, "chosen_groups": 1}, "MOE-2"),
        )
    ),
    *(
        EXPERTS.entry(
            f"groups-by-{name.replace('_', '-')}", f"groups are chosen by {says}", set_choice(group_score=name), "MOE-2"
        )
        for name, says in GROUPS.items()
    ),
    *(
        EXPERTS.entry(name, says, change_mixture(change), rule)
        for name, says, change, rule in (
            ("no-choice-bias", "the bias of the choice is ignored", drop_choice_bias, "MOE-2"),
            ("no-router-bias", "the bias of the router is left out", drop_router_bias, "MOE-1"),
            ("shared-left-out", "the shared expert is left out", lambda p: p._replace(shared=None), "MOE-4"),
            ("gate-swapped", "gate and inner projection of the experts have changed places", swap_gate, "MOE-4"),
            (
                "gate-halves",
                "gate and inner projection, which alternate, are read as halves",
                regroup_columns(False),
                "",
            ),
            ("gate-alternating", "the halves gate and inner are read as if they alternated", regroup_columns(True), ""),
        )
    ),
    *(
        EXPERTS.entry(name, says, replace_mixture(function), rule)
        for name, says, function, rule in (
            ("choice-bias-weighs", "the bias of the choice is left in the weights", weigh_by_preferences, "MOE-3"),
            ("shared-scaled", "the factor of the weights is applied to the shared expert too", scale_shared, "MOE-3"),
            ("shared-for-each", "the shared expert is added once for each chosen one", repeat_shared, "MOE-4"),
            ("chosen-left-out", "the chosen experts are left out", drop_chosen, "MOE-4"),
            ("not-clamped", "the activation is SiLU, which is not clamped", drop_clamps, "MOE-4"),
        )
    ),
    EXPERTS.entry("reversed", "the experts stand in the opposite order", replace_experts(lambda stack: stack[::-1])),
    EXPERTS.entry(
        "first-alone",
        "every token goes through the first expert",
        replace_experts(lambda stack: np.repeat(stack[:1], len(stack), axis=0)),
    ),
)

# --- latent attention -------------------------------------------------------------------------------------------------

LATENT = Topic("latent", "MLA-1", ("attend",))


class Widths(NamedTuple):
    """Of a latent attention's heads: H, D, R, V and C of MLA-1."""

    H: int
    D: int
    R: int
    V: int
    C: int


def read_widths(p: LatentAttention, configuration: Configuration) -> Widths:
    H, C = configuration.num_heads, p.key_value_norm.weight.shape[0]
    R = p.key_value_down.weight.shape[1] - C
    D = p.query.weight.shape[1] // H - R
    return Widths(H, D, R, p.key_value_up.weight.shape[1] // H - D, C)


def change_latent(change: Callable[[LatentAttention, Configuration], dict[int, Any]]) -> StepChange:
    """Change arguments of latent attentions, by their positions; others stay as they are."""

    def changed(step: Step) -> Step:
        parameters, configuration = step.arguments[PARAMETERS], step.arguments[ATTENTION_CONFIGURATION]
        if isinstance(parameters, LatentAttention):
            for index, argument in change(parameters, configuration).items():
                step = step.argument(index, argument)
        return step

    return changed


def change_latent_scale(change_scale: Callable[[Widths, float], float]) -> StepChange:
    """Multiply scores by another scale, which a function of the widths and of the right scale returns."""

    def change(p: LatentAttention, configuration: Configuration) -> dict[int, Any]:
        widths, scale = read_widths(p, configuration), configuration.scale
        scale = (widths.D + widths.R) ** -0.5 if isinstance(scale, str) else scale
        return {ATTENTION_CONFIGURATION: replace(configuration, scale=float(change_scale(widths, scale)))}

    return change_latent(change)


def apply_yarn_once(widths: Widths, scale: float) -> float:
    """The scale with YaRN's factor once, of that with its square."""
    return float((scale * (widths.D + widths.R) ** -0.5) ** 0.5)


def reorder_columns(name: str, order: Callable[[Widths], np.ndarray]) -> StepChange:
    """Read the columns of a projection in another order, which a function of the widths returns."""

    def change(p: LatentAttention, configuration: Configuration) -> dict[int, Any]:
        projection, places = getattr(p, name), order(read_widths(p, configuration))
        bias = None if projection.bias is None else projection.bias[places]
        changed: Any = {name: Linear(projection.weight[:, places], bias)}
        return {PARAMETERS: p._replace(**changed)}

    return change_latent(change)


def swap_head_parts(count: int, first: int, second: int) -> np.ndarray:
    """Columns of heads that have two parts of these widths; the second part stands first in the file."""
    head = np.concatenate([second + np.arange(first), np.arange(second)])
    return (np.arange(count)[:, None] * (first + second) + head).ravel()


def list_keys_first(w: Widths) -> np.ndarray:
    """Columns of heads in a file that has the keys of all heads before the values of all heads."""
    keys = np.arange(w.H * w.D).reshape(w.H, w.D)
    values = w.H * w.D + np.arange(w.H * w.V).reshape(w.H, w.V)
    return np.concatenate([keys, values], axis=1).ravel()


def replace_projection(name: str, function: Callable[..., Any]) -> StepChange:
    """Replace the function of this name inside a block's latent attention."""
    attend = copy_functions({name: function}, blocks)["attend"]
    return lambda step: step._replace(function=attend) if isinstance(step.arguments[0], LatentAttention) else step


def drop_weight(norm: Norm) -> Norm:
    return Norm(np.ones_like(norm.weight))


def skip_latent_norm(p: LatentAttention, x: np.ndarray, rotation: Rotation, pairing: str, eps: float) -> Any:
    _, keys = project_latents(p, x, rotation, pairing, eps)
    return linear(p.key_value_down, x)[..., : p.key_value_norm.weight.shape[0]], keys


def skip_query_norm(p: LatentAttention, x: np.ndarray, *options: Any) -> Any:
    if p.query_down is None:
        raise ValueError("queries are not compressed")
    plain = p._replace(query_down=None, query_norm=None)
    return project_latent_queries(plain, linear(p.query_down, x), *options)


def rotate_by_zero(rotation: Rotation) -> Rotation:
    """A rotation of the same shape, by angles of 0."""
    return Rotation(0 * rotation.sine, 0 * rotation.cosine + 1)


def skip_key_rotation(p: LatentAttention, x: np.ndarray, rotation: Rotation, pairing: str, eps: float) -> Any:
    return project_latents(p, x, rotate_by_zero(rotation), pairing, eps)


def skip_query_rotation(
    p: LatentAttention, x: np.ndarray, heads: int, rotation: Rotation, pairing: str, eps: float
) -> Any:
    return project_latent_queries(p, x, heads, rotate_by_zero(rotation), pairing, eps)


LATENTS = (
    LATENT.entry(
        "no-norm", "the norm of the latent is left out", replace_projection("project_latents", skip_latent_norm)
    ),
    LATENT.entry(
        "no-norm-weight",
        "the weight of the latent's norm is left out",
        change_latent(lambda p, c: {PARAMETERS: p._replace(key_value_norm=drop_weight(p.key_value_norm))}),
    ),
    LATENT.entry(
        "no-query-norm",
        "the norm of compressed queries is left out",
        replace_projection("project_latent_queries", skip_query_norm),
    ),
    LATENT.entry(
        "key-not-rotated", "the shared key is not rotated", replace_projection("project_latents", skip_key_rotation)
    ),
    LATENT.entry(
        "queries-not-rotated",
        "queries are not rotated",
        replace_projection("project_latent_queries", skip_query_rotation),
    ),
    LATENT.entry(
        "eps",
        "the norms inside have the eps of the blocks' norms",
        change_latent(lambda p, c: {ATTENTION_CONFIGURATION: replace(c, latent_eps=c.norm_eps)}),
    ),
    *(
        LATENT.entry(name, f"scores are divided by {says}", change_latent_scale(change_scale))
        for name, says, change_scale in (
            ("scale-part", "sqrt(D), of the columns that are not rotated", lambda w, scale: w.D**-0.5),
            ("scale-rotated", "sqrt(R), of the columns that are rotated", lambda w, scale: w.R**-0.5),
            ("scale-latent", "sqrt(C), of the latent", lambda w, scale: w.C**-0.5),
            ("no-yarn", "sqrt(D + R), without YaRN's factor", lambda w, scale: (w.D + w.R) ** -0.5),
            ("yarn-once", "sqrt(D + R), with YaRN's factor once", apply_yarn_once),
        )
    ),
    *(
        LATENT.entry(name, says, reorder_columns(part, order))
        for name, says, part, order in (
            ("key-first", "the rotated key stands before the latent", "key_value_down",
             lambda w: np.concatenate([w.R + np.arange(w.C), np.arange(w.R)])),
            ("values-first", "in each head the value stands before the key", "key_value_up",
             lambda w: swap_head_parts(w.H, w.D, w.V)),
            ("keys-before-values", "the keys of all heads stand before all values", "key_value_up",
             list_keys_first),
            ("rotated-first", "in each head the rotated columns of a query come first", "query",
             lambda w: swap_head_parts(w.H, w.D, w.R)),
        )
    ),
)  # fmt: skip
MISTAKES = (*MIXTURES, *LATENTS)
