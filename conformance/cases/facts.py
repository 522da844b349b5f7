"""What every operation is, by name: whatever needs no bound, no check and no drawn case to say."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from conformance.cases.case import Case, heads_and_keys, list_arrays, masked_dimensions, numpy_dtype, widths_of
from conformance.cases.operation import (
    HEADS,
    OFFSET,
    PAIRS,
    Arrays,
    Axis,
    B,
    D,
    Described,
    K,
    OperationFacts,
    Q,
    Rows,
    Shape,
    Sizes,
    State,
    Structure,
    V,
    name_leading_axes,
)
from specification import FeedForward, GatedFeedForward, LatentAttention, MixtureOfExperts, MultiHeadAttention
from specification.dtypes import FLOATING, compute_dtype_name
from specification.optimizers import AdamState, SgdState

FEATURE_RULES = {
    "causal": "MASK-3",
    "window": "MASK-4",
    "offset": "MASK-3",
    "lengths": "MASK-2",
    "padding": "MASK-2",
    "segments": "MASK-2",
    "dense": "MASK-1",
    "combined": "MASK-6",
    "or": "MASK-6",
    "scale": "ATT-1",
    "softcap": "ATT-2",
    "bias": "ATT-3",
    "sinks": "ATT-5",
    "alibi_slopes": "ATT-3",
    "query_lengths": "MASK-2",
    "dropout": "ATT-11",
    "empty_rows": "ATT-6",
    "gqa": "ATT-7",
    "cross": "ATT-8",
    "value_width": "ATT-8",
    "empty": "ATT-8",
    "gradients": "ATT-12",
    "logsumexp": "ATT-14",
    "": "ATT-9",
}
"""The rule that says how each feature of attention works."""
OF_ATTENTION = (
    *("polarity", "empty_rows", "causal", "heads", "isolation", "weights", "products", "scores", "shared_heads"),
    *("saved", "merging"),
)
"""Conventions of attention, and of what is made of it."""
OF_SCORES = ("batch", "heads", "group_ratio", "queries", "keys", "key_width")
"""Dimensions of attention without values."""


def attention_shape(case: Case, name: str, layout: str) -> Shape:
    query = case.inputs["query"].shape
    if name == "logsumexp":
        return query[:3] if layout == "BHTD" else (query[0], query[2], query[1])
    return (*query[:-1], case.inputs["value"].shape[-1])


def weights_shape(case: Case, name: str, layout: str) -> Shape:
    query, key = case.inputs["query"].shape, case.inputs["key"].shape
    heads, length = (1, 2) if layout == "BHTD" else (2, 1)
    return query[0], query[heads], query[length], key[length]


def attention_axes(case: Case, output: tuple[Axis, ...] = (B, HEADS, Q, V)) -> Described:
    (batch, H, queries, width), (_, G, keys, _) = case.inputs["query"].shape, case.inputs["key"].shape
    sizes = {"B": batch, "G": G, "S": H // max(G, 1), "Q": queries, "K": keys, "D": width}
    if "value" in case.inputs:
        sizes["V"] = case.inputs["value"].shape[-1]
    arrays = {"query": (B, HEADS, Q, D), "key": (B, ("G",), K, D), "value": (B, ("G",), K, V), "sinks": (HEADS,)}
    arrays |= {"alibi_slopes": (B, HEADS), "query_lengths": (B,)}
    arrays |= {"bias": PAIRS, "option dropout_keep": PAIRS, "-> output": output, "-> logsumexp": PAIRS[:3]}
    return sizes, arrays, {}


ATTENTION = OperationFacts(
    name="attention",
    rules=FEATURE_RULES,
    conventions=(*OF_ATTENTION, "capped"),
    arguments=("query", "key", "value"),
    differentiated=("query", "key", "value", "bias", "sinks"),
    masked=True,
    wide=("logsumexp", "alibi_slopes"),
    positive=("alibi_slopes",),
    shape=attention_shape,
    dimensions=masked_dimensions,
    dimension_names=(*OF_SCORES, "value_width"),
    axes=attention_axes,
)
ATTENTION_WEIGHTS = replace(
    ATTENTION,
    name="attention_weights",
    arguments=("query", "key"),
    differentiated=("query", "key", "bias", "sinks"),
    wide=("alibi_slopes",),
    shape=weights_shape,
    dimension_names=OF_SCORES,
    axes=partial(attention_axes, output=PAIRS),
)
ATTENTION_LOGSUMEXP = replace(
    ATTENTION_WEIGHTS,
    name="attention_logsumexp",
    wide=("output", "alibi_slopes"),
    shape=lambda case, name, layout: weights_shape(case, name, layout)[:3],
    axes=partial(attention_axes, output=PAIRS[:3]),
)


def name_axes(array: np.ndarray, *names: str) -> dict[str, int]:
    return dict(zip(names, array.shape, strict=True))


def merged_axes(case: Case) -> Described:
    batch, heads, queries, width = case.inputs["outputs[0]"].shape
    sizes = {"parts": len(list_arrays(case.inputs, "outputs")), "B": batch, "H": heads, "Q": queries, "V": width}
    outputs, sums = (B, ("H",), Q, V), (B, ("H",), Q)
    arrays: Arrays = {"outputs": outputs, "logsumexps": sums}
    lists: dict[str, Axis] = {"outputs": ("parts",), "logsumexps": ("parts",)}
    return sizes, arrays | {"-> output": outputs, "-> logsumexp": sums}, lists


MERGE_ATTENTION = OperationFacts(
    name="merge_attention",
    rules={"": "ATT-14"},
    arguments=("outputs", "logsumexps"),
    differentiated=("outputs", "logsumexps"),
    results=("output", "logsumexp"),
    lists=("outputs", "logsumexps"),
    wide=("logsumexps", "logsumexp"),
    shape=lambda case, name, layout: case.inputs["outputs[0]" if name == "output" else "logsumexps[0]"].shape,
    dimensions=lambda case: name_axes(case.inputs["outputs[0]"], "batch", "heads", "queries", "value_width"),
    dimension_names=("batch", "heads", "queries", "value_width"),
    axes=merged_axes,
)


def multi_head_axes(case: Case) -> Described:
    (H, G, queries, keys), (width, value_width) = heads_and_keys(case), widths_of(case)
    inputs, outer = case.inputs, case.inputs["output.weight"].shape[-1]
    sizes = {"B": inputs["query"].shape[0], "G": G, "S": H // max(G, 1), "Q": queries, "K": keys}
    sizes |= {"D": width, "V": value_width, "E": inputs["query"].shape[-1], "output": outer}
    sizes |= {"E of key": inputs["key"].shape[-1], "E of value": inputs["value"].shape[-1]}
    columns = {"query": (("E",), Q, (*HEADS, "D")), "key": (("E of key",), K, ("G", "D"))}
    columns |= {"value": (("E of value",), K, ("G", "V"))}
    arrays: Arrays = {"sinks": (HEADS,), "bias": PAIRS, "option dropout_keep": PAIRS}
    lists: dict[str, Axis] = {}
    for name, (model, length, heads) in columns.items():
        separate = f"{name}.weight" not in inputs
        lists |= {name: heads[:-1]} if separate else {}
        outside = heads[-1:] if separate else heads
        arrays |= {name: (B, length, model), f"{name}.weight": (model, outside), f"{name}.bias": (outside,)}
    arrays |= {"output.weight": ((*HEADS, "V"), ("output",)), "output.bias": (("output",),)}
    return sizes, arrays | {"-> output": (B, Q, ("output",))}, lists


MULTI_HEAD_ATTENTION = OperationFacts(
    name="multi_head_attention",
    rules={"": "MHA-1", "fused": "MHA-1", "separate": "MHA-2"},
    conventions=OF_ATTENTION,
    arguments=("parameters", "query", "key", "value"),
    differentiated=("parameters", "query", "key", "value", "bias", "sinks"),
    structure=Structure(MultiHeadAttention, ("query", "key", "value", "output")),
    masked=True,
    shape=lambda case, name, layout: (*case.inputs["query"].shape[:-1], case.inputs["output.weight"].shape[-1]),
    dimensions=lambda case: masked_dimensions(case) | {"model_width": case.inputs["query"].shape[-1]},
    dimension_names=(*OF_SCORES, "value_width", "model_width"),
    axes=multi_head_axes,
)


def latent_axes(case: Case) -> Described:
    """Columns of a sum, as of key and value side by side, keep their number; tokens are queries and keys."""
    inputs, H = case.inputs, case.options["num_heads"]
    B_, T, E = inputs["x"].shape
    (rows, query), (C, up) = inputs["query.weight"].shape, inputs["key_value_up.weight"].shape
    value, outer = inputs["output.weight"].shape
    sizes = {"B": B_, "G": H, "S": 1, "Q": T, "K": T, "D": query // H, "V": value // H, "model": E, "output": outer}
    sizes |= {"C": C, "C and R": inputs["key_value_down.weight"].shape[1], "D and V": up // H}
    model, heads, latents, down = ("model",), (*HEADS, "D"), ("C",), ("C and R",)
    source = ("inner",) if "query_down.weight" in inputs else model
    sizes |= {"inner": rows} if "query_down.weight" in inputs else {}
    arrays: Arrays = {"x": (B, Q, model), "positions": (B, Q), "query.weight": (source, heads), "query.bias": (heads,)}
    arrays |= {"query_down.weight": (model, source), "query_down.bias": (source,), "query_norm.weight": (source,)}
    arrays |= {"key_value_down.weight": (model, down), "key_value_down.bias": (down,)}
    arrays |= {"key_value_norm.weight": (latents,), "key_value_up.weight": (latents, (*HEADS, "D and V"))}
    arrays |= {"output.weight": ((*HEADS, "V"), ("output",)), "output.bias": (("output",),)}
    return sizes, arrays | {"-> output": (B, Q, ("output",))}, {}


def latent_dimensions(case: Case) -> dict[str, int]:
    inputs, H = case.inputs, case.options["num_heads"]
    (batch, length, model), latents = inputs["x"].shape, inputs["key_value_norm.weight"].size
    widths = {"key_width": inputs["query.weight"].shape[1] // H, "value_width": inputs["output.weight"].shape[0] // H}
    positions = inputs.get("positions", np.arange(length))
    sizes = {"batch": batch, "heads": H, "length": length, "table": int(positions.max(initial=-1)) + 1}
    return sizes | widths | {"model_width": model, "inner_width": latents}


LATENT_ATTENTION = OperationFacts(
    name="latent_attention",
    rules=dict.fromkeys(
        (
            "",
            "causal",
            "window",
            "offset",
            "lengths",
            "padding",
            "segments",
            "dense",
            "combined",
            "or",
            "scale",
            "rotary_scaling",
            "batch_positions",
        ),
        "MLA-1",
    ),
    option_rules={"absorbed": "MLA-2"},
    conventions=(
        *("weights", "products", "scores", "shared_heads", "saved", "merging", "normalized", "angles", "rotation"),
    ),
    arguments=("parameters", "x"),
    differentiated=("parameters", "x"),
    structure=Structure(
        LatentAttention,
        LatentAttention._fields,
        norms=("key_value_norm", "query_norm"),
        optional=("query_down", "query_norm"),
    ),
    shape=lambda case, name, layout: (*case.inputs["x"].shape[:-1], case.inputs["output.weight"].shape[-1]),
    dimensions=latent_dimensions,
    dimension_names=("batch", "heads", "length", "table", "key_width", "value_width", "model_width", "inner_width"),
    axes=latent_axes,
    fixed=("S", "D", "V", "C", "C and R", "D and V"),
    tied=("Q", "K"),
)


# --- norms ------------------------------------------------------------------------------------------------------------


def shape_of_x(case: Case, name: str, layout: str) -> Shape:
    return case.inputs["x"].shape


def norm_dimensions(case: Case) -> dict[str, int]:
    x, width = case.inputs["x"], case.inputs["weight"].size
    return {"rows": x.size // max(width, 1), "norm_width": width}


def norm_axes(case: Case) -> Described:
    x, weight = case.inputs["x"], case.inputs["weight"]
    rows, sizes = name_leading_axes(x, weight.ndim)
    widths = ["W", *(f"W {i}" for i in range(1, weight.ndim))][::-1]
    inner = tuple((name,) for name in widths)
    sizes |= dict(zip(widths, weight.shape, strict=True))
    return sizes, {"x": (*rows, *inner), "weight": inner, "bias": inner, "-> output": (*rows, *inner)}, {}


LAYER_NORM = OperationFacts(
    name="layer_norm",
    rules={"": "NORM-1", "dtype": "NORM-2", "gradients": "NORM-6", "biased": "NORM-1", "unbiased": "NORM-1"},
    arguments=("x", "weight", "bias"),
    differentiated=("x", "weight", "bias"),
    conventions=("normalized",),
    norm=True,
    rows=Rows("x", lambda case: case.inputs["weight"].ndim),
    shape=shape_of_x,
    dimensions=norm_dimensions,
    dimension_names=("rows", "norm_width"),
    axes=norm_axes,
)
RMS_NORM = replace(
    LAYER_NORM,
    name="rms_norm",
    rules={"": "NORM-7", "gradients": "NORM-6"},
    option_rules={"plus_one": "NORM-8"},
    arguments=("x", "weight"),
    differentiated=("x", "weight"),
)
STANDARD_DEVIATION_NORM = replace(
    LAYER_NORM,
    name="standard_deviation_norm",
    rules=dict.fromkeys(("", "biased", "unbiased"), "NORM-7"),
    least_width=2,
)


# --- feed-forward networks --------------------------------------------------------------------------------------------


def network_dimensions(case: Case) -> dict[str, int]:
    x, inner = case.inputs["x"], case.inputs["inner.weight"].shape[1]
    return {"rows": x.size // max(x.shape[-1], 1), "model_width": x.shape[-1], "inner_width": inner}


def network_axes(case: Case) -> Described:
    rows, sizes = name_leading_axes(case.inputs["x"], 1)
    inner, outer = case.inputs["outer.weight"].shape
    sizes |= {"E": case.inputs["x"].shape[-1], "inner": inner, "output": outer}
    E, inside, out = ("E",), ("inner",), ("output",)
    arrays = {"x": (*rows, E), "inner.weight": (E, inside), "inner.bias": (inside,), "outer.weight": (inside, out)}
    arrays |= {"gate.weight": (E, inside), "gate.bias": (inside,)}
    keep = {"option dropout_keep": (*rows, inside)}
    return sizes, arrays | {"outer.bias": (out,), "-> output": (*rows, out)} | keep, {}


FEED_FORWARD = OperationFacts(
    name="feed_forward",
    rules={"": "FFN-1"},
    conventions=("products",),
    arguments=("parameters", "x"),
    differentiated=("parameters", "x"),
    structure=Structure(FeedForward, ("inner", "outer")),
    rows=Rows("x", lambda case: 1),
    shape=lambda case, name, layout: (*case.inputs["x"].shape[:-1], case.inputs["outer.weight"].shape[-1]),
    dimensions=network_dimensions,
    dimension_names=("rows", "model_width", "inner_width"),
    axes=network_axes,
)
GATED_FEED_FORWARD = replace(
    FEED_FORWARD,
    name="gated_feed_forward",
    rules={"": "FFN-2"},
    structure=Structure(GatedFeedForward, ("gate", "inner", "outer")),
)


def silu_axes(case: Case) -> Described:
    rows, sizes = name_leading_axes(case.inputs["x"], 0)
    return sizes, {"x": rows, "-> output": rows}, {}


SILU = OperationFacts(
    name="silu",
    rules={"": "ACT-1"},
    arguments=("x",),
    differentiated=("x",),
    rows=Rows("x", lambda case: 0),
    shape=shape_of_x,
    dimensions=lambda case: {"rows": case.inputs["x"].size},
    dimension_names=("rows",),
    axes=silu_axes,
)


# --- mixtures of experts ----------------------------------------------------------------------------------------------


def expert_sizes(case: Case) -> dict[str, int]:
    return {"rows": math.prod(case.inputs["x"].shape[:-1]), "model_width": case.inputs["x"].shape[-1]}


def router_axes(case: Case) -> Described:
    """The number of experts, which options speak of, stays as it is; so does the number of those that are chosen."""
    rows, sizes = name_leading_axes(case.inputs["x"], 1)
    E: Axis = ("E",)
    arrays: Arrays = {"x": (*rows, E), "router.weight": (E, ()), "router.bias": ((),), "choice_bias": ((),)}
    arrays |= {f"-> {name}": (*rows, ()) for name in ("indices", "weights", "scores")}
    return sizes | {"E": case.inputs["x"].shape[-1]}, arrays, {}


ROUTE = OperationFacts(
    name="route",
    rules={"": "MOE-3"},
    conventions=("products", "scores", "weights"),
    arguments=("x", "router"),
    differentiated=("x", "router", "choice_bias"),
    results=("indices", "weights", "scores"),
    projections=("router",),
    wide=("weights", "scores"),
    indices=("indices",),
    rows=Rows("x", lambda case: 1),
    shape=lambda case, name, layout: (
        *case.inputs["x"].shape[:-1],
        case.inputs["router.weight"].shape[1] if name == "scores" else case.options["chosen"],
    ),
    dimensions=expert_sizes,
    dimension_names=("rows", "model_width"),
    axes=router_axes,
)


def mixture_axes(case: Case) -> Described:
    sizes, arrays, lists = router_axes(case)
    inner, outer = case.inputs["experts.outer.weight"].shape[1:]
    sizes |= {"inner": inner, "output": outer}
    E, out = ("E",), ("output",)
    for name, stack, inside in (("experts", ((),), ("inner",)), ("shared", (), ("shared",))):
        for side in ("gate", "inner"):
            arrays |= {f"{name}.{side}.weight": (*stack, E, inside), f"{name}.{side}.bias": (*stack, inside)}
        arrays |= {f"{name}.outer.weight": (*stack, inside, out), f"{name}.outer.bias": (*stack, out)}
    if "shared.outer.weight" in case.inputs:
        sizes["shared"] = case.inputs["shared.outer.weight"].shape[0]
    rows = arrays["x"][:-1]
    return sizes, arrays | {"token_mask": rows, "-> output": (*rows, out)}, lists


MIXTURE_OF_EXPERTS = OperationFacts(
    name="mixture_of_experts",
    rules={"": "MOE-4"},
    conventions=("products", "scores", "weights", "combined"),
    arguments=("parameters", "x"),
    differentiated=("parameters", "x"),
    structure=Structure(
        MixtureOfExperts, ("router", "experts", "choice_bias", "shared"), optional=("choice_bias", "shared")
    ),
    rows=Rows("x", lambda case: 1),
    shape=lambda case, name, layout: (*case.inputs["x"].shape[:-1], case.inputs["experts.outer.weight"].shape[-1]),
    dimensions=lambda case: expert_sizes(case) | {"inner_width": case.inputs["experts.outer.weight"].shape[1]},
    dimension_names=("rows", "model_width", "inner_width"),
    axes=mixture_axes,
)


def router_loss_axes(case: Case) -> Described:
    rows, sizes = name_leading_axes(case.inputs["router_logits"], 1)
    return sizes, {"router_logits": (*rows, ()), "token_mask": rows, "-> output": ()}, {}


LOAD_BALANCING_LOSS = OperationFacts(
    name="load_balancing_loss",
    rules={"": "MOE-6"},
    arguments=("router_logits",),
    differentiated=("router_logits",),
    rows=Rows("router_logits", lambda case: 1),
    shape=lambda case, name, layout: (),
    dimensions=lambda case: {"rows": math.prod(case.inputs["router_logits"].shape[:-1])},
    dimension_names=("rows",),
    axes=router_loss_axes,
)
ROUTER_Z_LOSS = replace(LOAD_BALANCING_LOSS, name="router_z_loss")


# --- tables, positions and distances ----------------------------------------------------------------------------------


def embedding_dimensions(case: Case) -> dict[str, int]:
    vocabulary, width = case.inputs["table"].shape
    return {"rows": case.inputs["ids"].size, "vocabulary": vocabulary, "model_width": width}


def embedding_axes(case: Case) -> Described:
    rows, sizes = name_leading_axes(case.inputs["ids"], 0)
    vocabulary, width = case.inputs["table"].shape
    sizes |= {"vocabulary": vocabulary, "E": width}
    return sizes, {"table": (("vocabulary",), ("E",)), "ids": rows, "-> output": (*rows, ("E",))}, {}


EMBEDDING = OperationFacts(
    name="embedding",
    rules={"": "EMB-1"},
    arguments=("table", "ids"),
    differentiated=("table",),
    copies=True,
    rows=Rows("ids", lambda case: 0),
    shape=lambda case, name, layout: (*case.inputs["ids"].shape, case.inputs["table"].shape[-1]),
    dimensions=embedding_dimensions,
    dimension_names=("rows", "vocabulary", "model_width"),
    axes=embedding_axes,
)


def learned_dimensions(case: Case) -> dict[str, int]:
    vocabulary, width = case.inputs["table"].shape
    return {"length": case.options["length"], "vocabulary": vocabulary, "model_width": width}


def learned_axes(case: Case) -> Described:
    (positions, width), options = case.inputs["table"].shape, case.options
    sizes = {"length": options["length"], OFFSET: options.get(OFFSET) or 0, "vocabulary": positions, "E": width}
    return sizes, {"table": (("vocabulary",), ("E",)), "-> output": (("length",), ("E",))}, {}


LEARNED_POSITIONS = OperationFacts(
    name="learned_positions",
    rules={"": "POS-2"},
    arguments=("table", "length"),
    differentiated=("table",),
    copies=True,
    shape=lambda case, name, layout: (case.options["length"], case.inputs["table"].shape[-1]),
    dimensions=learned_dimensions,
    dimension_names=("length", "vocabulary", "model_width"),
    axes=learned_axes,
)


def sinusoidal_axes(case: Case) -> Described:
    options = case.options
    return {"length": options["length"], "E": options["width"], OFFSET: options.get(OFFSET) or 0}, {}, {}


def sinusoidal_dimensions(case: Case) -> dict[str, int]:
    length, width = case.options["length"], case.options["width"]
    return {"length": length, "model_width": width, "table": length + (case.options.get(OFFSET) or 0)}


SINUSOIDAL_POSITIONS = OperationFacts(
    name="sinusoidal_positions",
    rules={"": "POS-1"},
    arguments=("length", "width"),
    differentiated=(),
    shape=lambda case, name, layout: (case.options["length"], case.options["width"]),
    dimensions=sinusoidal_dimensions,
    dimension_names=("length", "model_width", "table"),
    axes=sinusoidal_axes,
)


def bias_sizes(case: Case) -> tuple[int, int, int]:
    """H, Q and K of a bias by distance."""
    H = case.inputs["table"].shape[1] if "table" in case.inputs else case.options["num_heads"]
    return H, case.options["query_length"], case.options["key_length"]


def bias_shape(case: Case, name: str, layout: str) -> Shape:
    return (1, *bias_sizes(case))


def bias_dimensions(case: Case) -> dict[str, int]:
    return dict(zip(("heads", "queries", "keys"), bias_sizes(case), strict=True))


def alibi_axes(case: Case) -> Described:
    H, Q, K = bias_sizes(case)
    return {"H": H, "Q": Q, "K": K, OFFSET: case.options.get(OFFSET) or 0}, {}, {}


def relative_axes(case: Case) -> Described:
    """The table keeps its rows, whose number decides the buckets."""
    H, Q, K = bias_sizes(case)
    arrays: Arrays = {"table": ((), ("H",)), "-> output": ((), ("H",), ("Q",), ("K",))}
    return {"H": H, "Q": Q, "K": K, OFFSET: case.options.get(OFFSET) or 0}, arrays, {}


ALIBI_BIAS = OperationFacts(
    name="alibi_bias",
    rules={"": "POS-5"},
    conventions=("distances",),
    arguments=("num_heads", "query_length", "key_length"),
    differentiated=(),
    shape=bias_shape,
    dimensions=bias_dimensions,
    dimension_names=("heads", "queries", "keys"),
    axes=alibi_axes,
)
RELATIVE_POSITION_BIAS = OperationFacts(
    name="relative_position_bias",
    rules={"": "POS-6"},
    arguments=("table", "query_length", "key_length"),
    differentiated=("table",),
    copies=True,
    shape=bias_shape,
    dimensions=bias_dimensions,
    dimension_names=("heads", "queries", "keys"),
    axes=relative_axes,
)


# --- rotary embeddings ------------------------------------------------------------------------------------------------


def rotary_axes(case: Case) -> Described:
    B, H, T, D = case.inputs["x"].shape
    whole: tuple[Axis, ...] = (("B",), ("H",), ("T",), ("E",))
    arrays: Arrays = {"x": whole, "positions": (("B",), ("T",)), "-> output": whole}
    return {"B": B, "H": H, "T": T, "E": D}, arrays, {}


def rotary_dimensions(case: Case) -> dict[str, int]:
    table = int(case.inputs["positions"].max(initial=-1)) + 1
    return name_axes(case.inputs["x"], "batch", "heads", "length", "model_width") | {"table": table}


def unturned_columns(case: Case, name: str) -> np.ndarray:
    """Columns past the rotary width."""
    shape, width = case.inputs["x"].shape, case.options.get("rotary_width")
    return np.broadcast_to(np.arange(shape[-1]) >= (shape[-1] if width is None else width), shape)


def returned_columns(case: Case) -> np.ndarray:
    """Where the columns that come back stand in the definition's result."""
    columns, width = case.inputs["x"].shape[-1], case.options.get("rotary_width")
    pairs = np.arange(columns if width is None else width).reshape(-1, 2)
    if "columns" not in case.rounding or case.options.get("pairing") != "interleaved":
        return np.arange(columns)
    return np.concatenate([pairs.T.reshape(-1), np.arange(pairs.size, columns)])


ROTARY_EMBEDDING = OperationFacts(
    name="rotary_embedding",
    rules={
        **dict.fromkeys(("", "halves", "interleaved", "rotary_width", "batch_positions"), "POS-3"),
        "rotary_scaling": "POS-4",
    },
    option_rules={"scaling": "POS-4"},
    conventions=("angles", "rotation", "columns"),
    arguments=("x", "positions"),
    differentiated=("x",),
    copied=unturned_columns,
    width_unit=2,
    shape=shape_of_x,
    dimensions=rotary_dimensions,
    dimension_names=("batch", "heads", "length", "model_width", "table"),
    axes=rotary_axes,
)


ROTARY_FREQUENCIES = OperationFacts(
    name="rotary_frequencies",
    rules=dict.fromkeys(("", "rotary_scaling"), "POS-4"),
    conventions=("angles",),
    arguments=("width",),
    differentiated=(),
    results=("frequencies", "attention_factor"),
    numbers=("attention_factor",),
    single=("frequencies",),
    width_unit=2,
    shape=lambda case, name, layout: () if name == "attention_factor" else (case.options["width"] // 2,),
    dimensions=lambda case: {"model_width": case.options["width"]},
    dimension_names=("model_width",),
    axes=lambda case: ({"E": case.options["width"]}, {}, {}),
)


# --- losses -----------------------------------------------------------------------------------------------------------


def loss_dimensions(case: Case) -> dict[str, int]:
    rows = case.inputs.get("logits", case.inputs.get("log_probabilities"))
    return {"rows": case.inputs["targets"].size, "classes": 0 if rows is None else rows.shape[-1]}


def loss_axes(case: Case) -> Described:
    rows, sizes = name_leading_axes(case.inputs["targets"], 0)
    whole = (*rows, ("classes",))
    arrays = {"targets": rows, "logits": whole, "log_probabilities": whole}
    arrays["-> output"] = rows if case.options.get("reduction") == "none" else ()
    return sizes | {"classes": loss_dimensions(case)["classes"]}, arrays, {}


CROSS_ENTROPY = OperationFacts(
    name="cross_entropy",
    rules={"": "LOSS-1"},
    conventions=("no_targets",),
    arguments=("logits", "targets"),
    differentiated=("logits",),
    rows=Rows("logits", lambda case: 1),
    shape=lambda case, name, layout: case.inputs["targets"].shape if case.options.get("reduction") == "none" else (),
    dimensions=loss_dimensions,
    dimension_names=("rows", "classes"),
    axes=loss_axes,
)
NLL_LOSS = replace(
    CROSS_ENTROPY,
    name="nll_loss",
    rules={"": "LOSS-2"},
    arguments=("log_probabilities", "targets"),
    differentiated=("log_probabilities",),
    copies=True,
    rows=Rows("log_probabilities", lambda case: 1),
)


# --- optimizers -------------------------------------------------------------------------------------------------------


def shape_of_input(case: Case, name: str, layout: str) -> Shape:
    """That of the input of the same name; what is none is a number."""
    return case.inputs[name].shape if name in case.inputs else ()


def step_dimensions(case: Case) -> dict[str, int]:
    return {"rows": case.inputs["parameters"].size}


def step_axes(case: Case) -> Described:
    rows, sizes = name_leading_axes(case.inputs["parameters"], 0)
    return sizes, dict.fromkeys(case.inputs, rows), {}


ADAM_STEP = OperationFacts(
    name="adam_step",
    rules=dict.fromkeys(("", "zero_betas"), "OPT-1"),
    conventions=("moments", "epsilon"),
    arguments=("parameters", "gradients", "state"),
    differentiated=(),
    results=("parameters", "state"),
    state=State(AdamState, ("step", "mean", "square")),
    wide=("mean", "square"),
    positive=("square",),
    shape=shape_of_input,
    dimensions=step_dimensions,
    dimension_names=("rows",),
    axes=step_axes,
)
SGD_STEP = OperationFacts(
    name="sgd_step",
    rules={"": "OPT-2"},
    conventions=("velocity",),
    arguments=("parameters", "gradients", "state"),
    differentiated=(),
    results=("parameters", "state"),
    state=State(SgdState, ("velocity",)),
    wide=("velocity",),
    shape=shape_of_input,
    dimensions=step_dimensions,
    dimension_names=("rows",),
    axes=step_axes,
)


def clipped_axes(case: Case) -> Described:
    """Every array has axes of its own."""
    sizes: Sizes = {"parts": len(case.inputs)}
    arrays: Arrays = {}
    for name, array in case.inputs.items():
        own: tuple[Axis, ...] = tuple((f"rows {len(sizes) + k}",) for k in range(array.ndim))
        sizes |= {axis[0]: size for axis, size in zip(own, array.shape, strict=True)}
        arrays[name] = own
    return sizes, arrays, {"gradients": ("parts",)}


CLIP_BY_GLOBAL_NORM = OperationFacts(
    name="clip_by_global_norm",
    rules={"": "OPT-3"},
    conventions=("clipping",),
    arguments=("gradients", "limit"),
    differentiated=(),
    results=("gradients", "norm"),
    lists=("gradients",),
    wide=("norm",),
    shape=shape_of_input,
    dimensions=lambda case: {"rows": sum(array.size for array in case.inputs.values())},
    dimension_names=("rows",),
    axes=clipped_axes,
)


# --- all of them ------------------------------------------------------------------------------------------------------

IN_ORDER = (
    *(ATTENTION, ATTENTION_WEIGHTS, ATTENTION_LOGSUMEXP, MERGE_ATTENTION, MULTI_HEAD_ATTENTION),
    LATENT_ATTENTION,
    *(LAYER_NORM, RMS_NORM, STANDARD_DEVIATION_NORM),
    *(FEED_FORWARD, GATED_FEED_FORWARD, EMBEDDING, LEARNED_POSITIONS, SINUSOIDAL_POSITIONS),
    *(ALIBI_BIAS, RELATIVE_POSITION_BIAS, MIXTURE_OF_EXPERTS, ROUTE),
    *(ADAM_STEP, CLIP_BY_GLOBAL_NORM, CROSS_ENTROPY, LOAD_BALANCING_LOSS, NLL_LOSS, ROTARY_EMBEDDING),
    *(ROTARY_FREQUENCIES, ROUTER_Z_LOSS, SGD_STEP, SILU),
)
"""As they are studied, and the rest by name."""
BY_NAME = {one.name: one for one in IN_ORDER}


def operations() -> dict[str, OperationFacts]:
    """Return every operation by name, in the order in which they are studied."""
    return BY_NAME


def operation_facts(name: str) -> OperationFacts:
    return BY_NAME[name]


def convert_dtype(case: Case, dtype: str) -> Case:
    """The case with its numbers rounded to another dtype; every float16, bfloat16 and float32 is a float64."""
    record = operation_facts(case.operation)

    def convert(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        dtypes = {name: compute_dtype_name(dtype) if record.is_wide(name) else dtype for name in arrays}
        with np.errstate(over="ignore"):
            return {
                name: array.astype(numpy_dtype(dtypes[name])) if str(array.dtype) in FLOATING else array
                for name, array in arrays.items()
            }

    options = case.options | ({"dtype": dtype} if "dtype" in case.options else {})
    return replace(case, dtype=dtype, inputs=convert(case.inputs), options=options, cotangents=convert(case.cotangents))
