"""Multi-head attention gone wrong (MHA-1, MHA-2): its projections, its heads, and attention inside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.case import Case, heads_of, join_projections
from conformance.mistakes.call import Call, Results, attention_inside
from conformance.mistakes.catalogue import TOPICS, load_topic
from conformance.mistakes.changes import rearrange_inputs
from conformance.mistakes.condition import ALWAYS
from conformance.mistakes.mistake import Change, Mistake, Topic, name_entries, results_of_steps, solve_by_definition
from reference_numpy.multi_head_attention import concatenate_heads, split_heads

Array = np.ndarray
Arrays = dict[str, Array | None]
"""Arrays that take the place of others; None for one that goes."""
FIELDS = ("query", "key", "value", "output")
LAYER = ("multi_head_attention",)


TOPIC = Topic("multi_head", "MHA-1", LAYER)
entry = TOPIC.entry


# --- projections ------------------------------------------------------------------------------------------------------

SOME = tuple(", ".join(names) for size in (4, 1, 3, 2) for names in combinations(FIELDS, size))
"""Projections: all four, each alone, and every other choice."""


def change_projections(change: Callable[..., Arrays | None], separate: bool = False) -> Change:
    """Change the arrays of several projections by `change(fused case, name, **values)`; None if one cannot be changed.

    separate: only where each head has a projection of its own.
    """

    def move(case: Case, of: str, **values: object) -> Case | None:
        if separate and not any("[" in name for name in case.inputs):
            return None
        fused = replace(case, inputs=join_projections(case.inputs))
        inputs: Arrays = dict(fused.inputs)
        for name in of.split(", "):
            changed = change(fused, name, **values)
            if changed is None:
                return None
            inputs |= changed
        return replace(fused, inputs={name: array for name, array in inputs.items() if array is not None})

    return rearrange_inputs(move)


def transpose_weight(case: Case, name: str) -> Arrays | None:
    weight = case.inputs[f"{name}.weight"]
    return {f"{name}.weight": weight.T} if weight.shape[0] == weight.shape[1] else None


def take_columns(case: Case, name: str, order: Callable[[int, int], Array]) -> Arrays:
    """Columns that come out of a projection, or go into the last one, as `order(heads, width)` has them."""
    heads = (heads_of(case) | {"output": case.options["num_heads"]})[name]
    width = case.inputs[f"{name}.weight"].shape[0 if name == "output" else 1] // max(heads, 1)
    columns = order(heads, width).ravel()
    weight, bias = case.inputs[f"{name}.weight"], case.inputs.get(f"{name}.bias")
    if name == "output":
        return {f"{name}.weight": weight[columns]}
    return {f"{name}.weight": weight[:, columns], f"{name}.bias": None if bias is None else bias[columns]}


ORDERS: dict[str, Callable[[Array], Array]] = {
    "in reverse": lambda columns: columns[::-1],
    "column by column": lambda columns: columns.T,
    "as far as the first one": lambda columns: np.broadcast_to(columns[:1], columns.shape),
}


def join_heads_otherwise(case: Case, name: str, order: str) -> Arrays | None:
    if name == "output":
        return None
    return take_columns(case, name, lambda H, W: ORDERS[order](np.arange(H * W).reshape(H, W)))


def lose_end(case: Case, name: str, what: str, first: int = 0, block: int = 0) -> Arrays | None:
    """Leave 0 past the first ones, or past the last whole block, of what goes into a projection or comes out."""
    weight, bias = case.inputs[f"{name}.weight"], case.inputs.get(f"{name}.bias")
    kept = [np.arange(size) < (size // block * block or size if block else first) for size in weight.shape]
    if what == "inputs":
        return {f"{name}.weight": np.where(kept[0][:, None], weight, 0)}
    lost: Arrays = {} if bias is None else {f"{name}.bias": np.where(kept[1], bias, 0)}
    if what == "biases":
        return lost or None
    return {f"{name}.weight": np.where(kept[1], weight, 0)} | (lost if what == "columns" else {})


@rearrange_inputs
def exchange_projections(case: Case, pair: str) -> Case | None:
    inputs = join_projections(case.inputs)
    one, other = pair.split(" and ")
    if inputs[f"{one}.weight"].shape != inputs[f"{other}.weight"].shape:
        return None
    for field in (".weight", ".bias"):
        if one + field in inputs:
            inputs |= {one + field: inputs[other + field], other + field: inputs[one + field]}
    return replace(case, inputs=inputs)


@rearrange_inputs
def read_other_input(case: Case, of: str, source: str) -> Case | None:
    inputs = case.inputs
    names = of.split(" and ")
    if any(inputs[name].shape != inputs[source].shape for name in names):
        return None
    return replace(case, inputs=inputs | dict.fromkeys(names, inputs[source]))


SIZES = (64, 256, 1024, 4, 8, 16, 32, 128, 512)
PROJECTIONS = (
    entry("biases-ignored", "biases of projections are ignored: {of}", change_projections(
          lambda case, name: {f"{name}.bias": None} if f"{name}.bias" in case.inputs else None), of=SOME),
    entry("weights-transposed", "square weights of projections are transposed: {of}",
          change_projections(transpose_weight), of=SOME),
    entry("heads-interleaved", "column c of a projection belongs to head c % H: {of}",
          change_projections(partial(take_columns, order=lambda H, W: np.arange(H * W).reshape(W, H).T)), of=SOME),
    entry("projections-exchanged", "the projections of {pair} are exchanged", exchange_projections,
          pair=("key and value", "query and key", "query and value")),
    entry("input-of-another", "{of} are projected from the {source}'s input", read_other_input,
          of=("key", "value", "key and value", "query"), source=("value", "key", "query")),
    entry("heads-joined-otherwise", "projections of single heads are joined {order}: {of}",
          change_projections(join_heads_otherwise, separate=True), rule="MHA-2", of=("query, key, value", *FIELDS[:-1]),
          order=tuple(ORDERS)),
    entry("past-size", "{what} of a projection past the first {first} are lost: {of}",
          change_projections(lose_end), of=("output", "query", "key", "value", "query, key, value"),
          what=("inputs", "columns", "columns but for their bias", "biases"), first=SIZES),
    entry("partial-block", "{what} of a projection past the last whole block of {block} are lost: {of}",
          change_projections(lose_end), of=("output", "query", "key", "value", "query, key, value"),
          what=("inputs", "columns", "biases"), block=(4, 8, 16, 32, 64, 128)),
)  # fmt: skip

# --- from attention to the layer --------------------------------------------------------------------------------------


def carry_out(call: Call, found: Results, join: Callable[[Array], Array] = concatenate_heads,
              join_bars: Callable[[Array], Array] = concatenate_heads) -> Results:  # fmt: skip
    """The layer's results and gradients from those of attention inside; what attention does not say is right.

    join: of heads before the output projection. join_bars: of the gradients of query, key and value.
    """
    wide = {name: array.astype(float) for name, array in join_projections(call.case.inputs).items()}
    heads = join(found.get("output", call.attention_call.forward.output))
    results: Results = {}
    if "output" in found:
        results["output"] = heads @ wide["output.weight"] + wide.get("output.bias", 0)
    if not call.case.cotangents:
        return results
    bars = {name: join_bars(found[gradient_name(name)]) for name in FIELDS[:-1] if gradient_name(name) in found}
    gradients = {name: found[gradient_name(name)] for name in ("bias", "sinks") if gradient_name(name) in found}
    gradients |= {name: bar @ wide[f"{name}.weight"].T for name, bar in bars.items()}
    gradients |= pull_back_projections(wide | {"output": heads}, bars | {"output": call.cotangent()})
    return results | separate_gradients(call.case, gradients)


def pull_back_projections(inputs: Results, bars: Results) -> Results:
    """The gradients of weights and biases, from what goes into projections and the gradients of what comes out."""
    gradients: Results = {}
    for name, bar in bars.items():
        gradients[f"{name}.weight"] = np.einsum("bti,bto->io", inputs[name], bar)
        gradients[f"{name}.bias"] = bar.sum(axis=(0, 1))
    return gradients


def separate_gradients(case: Case, gradients: Results) -> Results:
    """By `gradient_name`; cut up for inputs that are projections of single heads."""
    found = {}
    for name in case.inputs:
        whole, head = name.partition("[")[0] + name.partition("]")[2], name.partition("[")[2].partition("]")[0]
        if whole in gradients:
            width = case.inputs[name].shape[-1]
            part = slice(int(head) * width, (int(head) + 1) * width) if head else slice(None)
            found[gradient_name(name)] = gradients[whole][..., part]
    return found


def carry(mistake: Mistake) -> Mistake:
    """Turn a mistake of attention into one of the layer's attention."""

    def change(call: Call, **values: object) -> list[Results]:
        inside = replace(mistake, operations=("attention",), values=values, condition=ALWAYS)
        found = inside.predict(call.attention_call, solve_by_definition)
        sure = (one for one in found if not any(np.isposinf(array).any() for array in one.bounds.values()))
        return [carry_out(call, one.results) for one in sure]

    identity = f"multi_head.{mistake.id.replace('.', '-').replace('_', '-')}"
    says = f"in the layer's attention, {mistake.says}"
    lacks = "" if mistake.lacks == "BHTD" else mistake.lacks  # a layer has its own layout inside
    return replace(mistake, id=identity, rule="MHA-1", says=says, change=change, operations=LAYER, lacks=lacks)


SPLITS = (split_heads, lambda x, heads: x.reshape(len(x), heads, x.shape[1], x.shape[2] // max(heads, 1)))
JOINS = (concatenate_heads, lambda x: x.reshape(len(x), x.shape[2], x.shape[1] * x.shape[3]))
"""As it is right, and without exchanging the axes of heads and positions."""


def forget_exchange(call: Call, of: str) -> list[Results]:
    """Reshape [B, T, H * W] to [B, H, T, W] or back."""
    (split, join_bars), (split_bars, join) = ((SPLITS[way in of], JOINS[way in of]) for way in ("split", "joined"))
    inside = Call(attention_inside(call.case, split, split_bars))
    return [carry_out(call, one, join, join_bars) for one in results_of_steps(inside, inside.steps, "both")]


TERMS = {
    "the first": slice(1),
    "the last": slice(-1, None),
    "all but the first": slice(1, None),
    "all but the last": slice(-1),
}


def count_terms(call: Call, of: str, terms: str, along: str) -> Results | None:
    """The gradients of a projection's weight or bias by some batch elements or positions only."""
    inside = call.attention_call
    right = inside.steps.sum_gradients(inside.gradients, inside.case.inputs)
    bars = {name: concatenate_heads(right[gradient_name(name)]) for name in FIELDS[:-1]} | {"output": call.cotangent()}
    inputs = {name: call.case.inputs[name].astype(float) for name in FIELDS[:-1]}
    inputs["output"] = concatenate_heads(inside.forward.output)
    some = (TERMS[terms],) if along == "batch elements" else (slice(None), TERMS[terms])
    counted = [{name: array[some] for name, array in arrays.items()} for arrays in (inputs, bars)]
    if any(counted[1][name].size == bar.size for name, bar in bars.items()):
        return None
    gradients = pull_back_projections(*counted)
    kept = {name: array for name, array in gradients.items() if name.endswith(of) or of == "weight and bias"}
    return separate_gradients(call.case, kept)


HEADS = (
    entry("exchange-forgotten", "heads are {of} without exchanging the axes of heads and positions",
          forget_exchange, of=("joined", "split", "split and joined")),
    entry("gradient-terms", "the gradient of a projection's {of} comes from {terms} of the {along} only",
          count_terms, needs=("gradients", "finite"), of=("bias", "weight", "weight and bias"), terms=tuple(TERMS),
          along=("batch elements", "positions")),
)  # fmt: skip
INSIDE = tuple(
    carry(mistake)
    for topic, operations in TOPICS.items()
    if "attention" in operations and topic != "backward"
    for mistake in load_topic(topic).MISTAKES
    if "attention" in mistake.operations
)
"""Every mistake of attention, made by the layer's attention in both passes; most values differ in sizes only."""

MISTAKES = (*PROJECTIONS, *HEADS, *INSIDE)
OWN = name_entries((*PROJECTIONS, *HEADS))
PLANTED = (
    *(mistake.choose() for mistake in OWN.values()),
    *(mistake.choose() for mistake in INSIDE if mistake.id.removeprefix("multi_head.") in ("masks-inverted",
      "masks-batch-repeated-over-flat-heads", "scores-softcap-ignored")),
    OWN["biases-ignored"].choose(of="output"),
    *(OWN["heads-joined-otherwise"].choose(order=order) for order in tuple(ORDERS)[1:]),
    OWN["past-size"].choose(first=1024),
    *(OWN["past-size"].choose(of="query", first=first) for first in (64, 1024)),
    *(OWN["past-size"].choose(what="columns but for their bias", first=first) for first in (64, 512)),
    replace(OWN["past-size"], rule="MHA-2").choose(first=256),
)  # fmt: skip
