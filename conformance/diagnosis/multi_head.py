"""Known mistakes of multi-head attention: in its projections, and those of attention inside it.

To see attention alone, the subject is asked a layer whose projections are identities: its inputs are then the heads,
side by side, and its output is what the heads give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from conformance.cases.arguments import gradient_name
from conformance.cases.arrays import heads_and_keys, joined
from conformance.cases.case import Case
from conformance.diagnosis.backward import is_answer, some_of
from conformance.diagnosis.matching import Failing, Mistake, resulting
from conformance.diagnosis.steps import added_up, forward, pulled_back, steps_of
from conformance.oracle.reference import by_definition
from conformance.subjects.subject import Answers, Subject, without_promise
from reference_numpy.multi_head_attention import concatenate_heads, linear, split_heads
from specification import Linear

FIELDS = ("query", "key", "value", "output")
WIDEST = 1024
"""Columns of all heads, up to which the subject is asked identities."""

Arrays = dict[str, np.ndarray | None]
"""Arrays that take the place of others; None for one that goes."""
Split = Callable[[np.ndarray, int], np.ndarray]
"""[B, T, columns] and a number of heads as [B, heads, T, width]."""


def fused(case: Case) -> Case:
    """With one projection for all heads, and no gradients."""
    return replace(case, inputs=joined(case.inputs), cotangents={}, memory={}, constants=())


def separate(case: Case) -> bool:
    """Whether every head has a projection of its own."""
    return any("[" in name for name in case.inputs)


def projection(case: Case, name: str) -> Linear:
    return Linear(case.inputs[f"{name}.weight"], case.inputs.get(f"{name}.bias"))


def counts(case: Case) -> dict[str, int]:
    """Heads of each projection."""
    H, G, _, _ = heads_and_keys(case)
    return {"query": H, "key": G, "value": G, "output": H}


# --- attention inside -------------------------------------------------------------------------------------------------


def inside(case: Case, split: Split = split_heads) -> Case:
    """The call of attention that a layer makes."""
    case, heads = replace(fused(case), cotangents=case.cotangents), counts(case)
    inputs = {n: split(linear(projection(case, n), case.inputs[n]), heads[n]) for n in FIELDS[:-1]}
    inputs |= {name: case.inputs[name] for name in ("bias", "sinks") if name in case.inputs}
    options = {name: value for name, value in case.options.items() if name != "num_heads"}
    weight = case.inputs["output.weight"]
    bars = {n: split_heads(linear(Linear(weight.T), bar), heads["output"]) for n, bar in case.cotangents.items()}
    return replace(case, operation="attention", inputs=inputs, options=options, cotangents=bars)


class Inside:
    """What a subject's multi-head attention does with the heads: asked as attention, between identities."""

    def __init__(self, subject: Subject, separate: bool) -> None:
        self.subject, self.separate = subject, separate
        self.declaration, self.framework = subject.declaration, subject.framework

    def __call__(self, case: Case) -> Answers:
        answers = self.subject(self.layer(case))
        heads = {"output": "query"} | {gradient_name(name): name for name in FIELDS[:-1]}
        return {
            name: split_heads(array, case.inputs[heads[name]].shape[1]) if name in heads else array
            for name, array in answers.items()
            if name in heads or name.removeprefix("gradient of ") in case.inputs
        }

    def layer(self, case: Case) -> Case:
        """The call of multi-head attention that is this call of attention."""
        inputs = {n: concatenate_heads(a) if n in FIELDS else a for n, a in case.inputs.items()}
        H, V = case.inputs["query"].shape[1], case.inputs["value"].shape[3]
        for name in FIELDS[:-1]:
            heads, weight = case.inputs[name].shape[1], identity(inputs[name].shape[-1], inputs[name].dtype)
            if self.separate:
                columns = np.split(weight, heads, axis=1)
                inputs |= {f"{name}[{h}].weight": np.ascontiguousarray(part) for h, part in enumerate(columns)}
            else:
                inputs[f"{name}.weight"] = weight
        inputs["output.weight"] = identity(H * V, inputs["value"].dtype)
        bars = {name: concatenate_heads(bar) for name, bar in case.cotangents.items()}
        options = case.options | {"num_heads": H}
        return replace(case, operation="multi_head_attention", inputs=inputs, options=options, cotangents=bars)


def identity(size: int, dtype: Any) -> np.ndarray:
    return np.eye(size, dtype=dtype)


def seen_inside(subject: Subject, case: Case) -> tuple[Any, Case] | None:
    """(the subject as attention, the call of attention that the case makes); None where that is too large."""
    H, G, _, _ = heads_and_keys(case)
    attention = inside(case)
    widest = max(H * attention.inputs[name].shape[-1] for name in FIELDS[:-1])
    return (Inside(subject, separate(case)), attention) if G and 0 < widest <= WIDEST else None


# --- projections ------------------------------------------------------------------------------------------------------


def layer(case: Case, split: Split = split_heads, join: Callable[[np.ndarray], np.ndarray] = concatenate_heads) -> Any:
    """The output of a fused layer, whose heads are split or joined in some way."""
    output = forward(steps_of(inside(case, split))).output.astype(case.inputs["query"].dtype)
    return linear(projection(case, "output"), join(output))


def answering(name: str, change: Callable[[Case], Case | None], of_separate: bool = False) -> Mistake:
    """The layer does as if it had been asked another case. of_separate: only one with a projection for each head."""

    def results(failing: Failing) -> dict[str, Any] | None:
        other = None if of_separate and not separate(failing.case) else change(fused(failing.case))
        return None if other is None else {"output": by_definition(without_promise(other))["output"].high}

    return resulting(name, results)


def reshaped(name: str, **ways: Any) -> Mistake:
    def results(failing: Failing) -> dict[str, Any] | None:
        return {"output": layer(without_promise(fused(failing.case)), **ways).astype(float)}

    return resulting(name, results)


def untransposed(x: np.ndarray, heads: int) -> np.ndarray:
    B, T, width = x.shape
    return x.reshape(B, heads, T, width // heads)


def rejoined(x: np.ndarray) -> np.ndarray:
    B, H, T, width = x.shape
    return x.reshape(B, T, H * width)


def of_fields(names: tuple[str, ...], change: Callable[[Case, str], Arrays | None]) -> Callable[[Case], Case | None]:
    """Changes of several projections' arrays; None where one of them cannot be changed."""

    def changed(case: Case) -> Case | None:
        found = dict(case.inputs)
        for name in names:
            arrays = change(case, name)
            if arrays is None:
                return None
            found.update(arrays)  # type: ignore[arg-type]
        return replace(case, inputs={name: array for name, array in found.items() if array is not None})

    return changed


def without_bias(case: Case, name: str) -> Arrays | None:
    return {f"{name}.bias": None} if f"{name}.bias" in case.inputs else None


def transposed(case: Case, name: str) -> Arrays | None:
    weight = case.inputs[f"{name}.weight"]
    return {f"{name}.weight": weight.T} if weight.shape[0] == weight.shape[1] else None


def interleaved(case: Case, name: str) -> Arrays | None:
    """Column c belongs to head c % heads."""
    weight, heads = case.inputs[f"{name}.weight"], counts(case)[name]
    size = weight.shape[0 if name == "output" else 1]
    order = np.arange(size).reshape(-1, heads).T.ravel()
    if np.array_equal(order, np.arange(size)):
        return None
    if name == "output":
        return {f"{name}.weight": weight[order]}
    bias = case.inputs.get(f"{name}.bias")
    return {f"{name}.weight": weight[:, order], f"{name}.bias": None if bias is None else bias[order]}


End = Callable[[int], int]
"""How much of a size is used."""
Ending = Callable[[End], Callable[[Case, str], Arrays | None]]


def of_bias(end: End) -> Callable[[Case, str], Arrays | None]:
    def change(case: Case, name: str) -> Arrays | None:
        bias = case.inputs.get(f"{name}.bias")
        if bias is None or end(len(bias)) >= len(bias):
            return None
        return {f"{name}.bias": np.where(np.arange(len(bias)) < end(len(bias)), bias, 0)}

    return change


def of_rows(end: End) -> Callable[[Case, str], Arrays | None]:
    """Of the numbers that go in."""

    def change(case: Case, name: str) -> Arrays | None:
        weight = case.inputs[f"{name}.weight"]
        kept = np.arange(len(weight)) < end(len(weight))
        return None if kept.all() else {f"{name}.weight": np.where(kept[:, None], weight, 0)}

    return change


def of_columns(end: End) -> Callable[[Case, str], Arrays | None]:
    """Of the numbers that come out, with their bias."""

    def change(case: Case, name: str) -> Arrays | None:
        weight = case.inputs[f"{name}.weight"]
        kept = np.arange(weight.shape[1]) < end(weight.shape[1])
        if kept.all():
            return None
        return {f"{name}.weight": np.where(kept, weight, 0)} | (of_bias(end)(case, name) or {})

    return change


def first(n: int) -> End:
    return lambda size: n


def whole_blocks(n: int) -> End:
    return lambda size: size // n * n or size


def exchanged(one: str, other: str) -> Callable[[Case], Case | None]:
    """Two projections that take each other's place."""

    def change(case: Case) -> Case | None:
        found = dict(case.inputs)
        if found[f"{one}.weight"].shape != found[f"{other}.weight"].shape:
            return None
        for field in ("weight", "bias"):
            arrays = found.pop(f"{one}.{field}", None), found.pop(f"{other}.{field}", None)
            found |= {f"{n}.{field}": a for n, a in zip((other, one), arrays, strict=True) if a is not None}
        return replace(case, inputs=found)

    return change


def joined_in_order(order: Callable[[int, int], np.ndarray]) -> Callable[[Case, str], Arrays | None]:
    """Per-head projections put side by side in another order of their columns; `order` gets heads and their width."""

    def change(case: Case, name: str) -> Arrays | None:
        heads = counts(case)[name]
        weight, bias = case.inputs[f"{name}.weight"], case.inputs.get(f"{name}.bias")
        if name == "output" or heads < 2:
            return None
        columns = order(heads, weight.shape[1] // heads)
        return {f"{name}.weight": weight[:, columns], f"{name}.bias": None if bias is None else bias[columns]}

    return change


def first_bias(case: Case, name: str) -> Arrays | None:
    heads, bias = counts(case)[name], case.inputs.get(f"{name}.bias")
    if name == "output" or heads < 2 or bias is None:
        return None
    return {f"{name}.bias": np.tile(bias[: len(bias) // heads], heads)}


JOINED = {
    "the heads of a projection are joined in reverse": lambda heads, width: (
        np.arange(heads * width).reshape(heads, width)[::-1].ravel()
    ),
    "the heads of a projection are joined column by column": lambda heads, width: (
        np.arange(heads * width).reshape(heads, width).T.ravel()
    ),
}


def read_from(source: str, *names: str) -> Callable[[Case], Case | None]:
    """Inputs that are another one."""

    def change(case: Case) -> Case | None:
        shape = case.inputs[source].shape
        if any(case.inputs[name].shape != shape for name in names):
            return None
        return replace(case, inputs=case.inputs | dict.fromkeys(names, case.inputs[source]))

    return change


def several() -> Iterator[tuple[str, ...]]:
    """All projections, the three before attention, and every other choice."""
    for size in (4, 3, 1, 2):
        yield from combinations(FIELDS, size)


def listed(names: tuple[str, ...]) -> str:
    return f"({', '.join(names)})"


NUMBERS = (1024, 512, 256, 128, 64, 32, 16, 8, 4)
ENDS: dict[str, tuple[Ending, Callable[[int], End]]] = {
    "only the first {n} columns of a projection's bias are added {of}": (of_bias, first),
    "columns past the first {n} of a projection are 0 {of}": (of_columns, first),
    "only the first {n} numbers of each row go into a projection {of}": (of_rows, first),
    "a projection's bias is not added past its last whole block {of} (blocks of {n} columns)": (of_bias, whole_blocks),
    "columns of a projection past its last whole block are 0 {of} (blocks of {n} columns)": (of_columns, whole_blocks),
    "numbers past a row's last whole block do not go into a projection {of} (blocks of {n} columns)": (
        of_rows,
        whole_blocks,
    ),
}
MISTAKES = (
    *(answering(f"biases of projections are ignored {listed(n)}", of_fields(n, without_bias)) for n in several()),
    *(answering(f"weights of projections are transposed {listed(n)}", of_fields(n, transposed)) for n in several()),
    *(
        answering(f"heads are interleaved: column c belongs to head c % H {listed(n)}", of_fields(n, interleaved))
        for n in several()
    ),
    *(
        answering(f"{words} {listed(n)}", of_fields(n, joined_in_order(order)), of_separate=True)
        for words, order in JOINED.items()
        for n in several()
    ),
    *(
        answering(f"every head has the first head's bias {listed(n)}", of_fields(n, first_bias), of_separate=True)
        for n in several()
    ),
    reshaped("heads are split without exchanging the axes of heads and positions", split=untransposed),
    reshaped("heads are joined without exchanging the axes of heads and positions", join=rejoined),
    reshaped(
        "heads are split and joined without exchanging the axes of heads and positions",
        split=untransposed,
        join=rejoined,
    ),
    *(
        answering(f"the projections of {one} and {other} are exchanged", exchanged(one, other))
        for one, other in combinations(FIELDS[:-1], 2)
    ),
    answering("keys and values are projected from the query's input", read_from("query", "key", "value")),
    answering("keys are projected from the query's input", read_from("query", "key")),
    answering("values are projected from the key's input", read_from("key", "value")),
    answering("keys are projected from the value's input", read_from("value", "key")),
    *(
        answering(words.format(n=n, of=listed(names)), of_fields(names, change(end(n))))
        for words, (change, end) in ENDS.items()
        for n in NUMBERS
        for names in (*((field,) for field in FIELDS), FIELDS[:-1], FIELDS)
    ),
)
"""From those that change most to those of one number."""


# --- gradients of projections -----------------------------------------------------------------------------------------

PROJECTED = re.compile(r"gradient of (query|key|value|output)(?:\[(\d+)\])?\.(weight|bias)$")


def wrongly_added(failing: Failing, name: str) -> Iterator[str]:
    """The gradient of a weight or bias comes from some batch elements or positions only."""
    found = PROJECTED.match(name)
    if found is None or not failing.case.cotangents:
        return
    field, head, kind = found[1], found[2], found[3]
    x, bar = of_projection(failing.case, field)
    if head is not None:
        width = failing.right(name).shape[-1]
        bar = bar[..., int(head) * width :][..., :width]
    for axis, thing, things in ((0, "batch element", "batch elements"), (1, "position", "positions")):
        for words, counted in some_of(bar.shape[axis], thing, things):
            some = [np.compress(counted, array, axis) for array in (x, bar)]
            array = np.einsum("bti,bto->io", *some) if kind == "weight" else some[1].sum(axis=(0, 1))
            if is_answer(failing, name, array):
                yield f"{name} {words}"


def of_projection(case: Case, field: str) -> tuple[np.ndarray, np.ndarray]:
    """(what goes into a projection, the cotangent of what comes out), [B, T, columns]."""
    attention = inside(case)
    steps, inner = steps_of(attention), attention.cotangents["output"].astype(float)
    if field == "output":
        return concatenate_heads(forward(steps).output), case.cotangents["output"].astype(float)
    parts = added_up(pulled_back(steps, inner, forward(steps).weights), attention)
    return case.inputs[field].astype(float), concatenate_heads(parts[gradient_name(field)])
