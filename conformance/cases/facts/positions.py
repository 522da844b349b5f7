"""Rows of tables, and what positions and distances give."""

from __future__ import annotations

from conformance.cases.axes import OFFSET, Arrays, Described, leading
from conformance.cases.case import Case
from conformance.cases.operation import OperationFacts, Rows, Shape


def embedding_shape(case: Case, name: str, layout: str) -> Shape:
    return (*case.inputs["ids"].shape, case.inputs["table"].shape[-1])


def embedding_dimensions(case: Case) -> dict[str, int]:
    vocabulary, width = case.inputs["table"].shape
    return {"rows": case.inputs["ids"].size, "vocabulary": vocabulary, "model_width": width}


def embedding_axes(case: Case) -> Described:
    rows, sizes = leading(case.inputs["ids"], 0)
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
    shape=embedding_shape,
    dimensions=embedding_dimensions,
    axes=embedding_axes,
)


def learned_shape(case: Case, name: str, layout: str) -> Shape:
    return (case.options["length"], case.inputs["table"].shape[-1])


def learned_dimensions(case: Case) -> dict[str, int]:
    vocabulary, width = case.inputs["table"].shape
    return {"length": case.options["length"], "vocabulary": vocabulary, "model_width": width}


def learned_axes(case: Case) -> Described:
    (positions, width), given = case.inputs["table"].shape, case.options
    sizes = {"length": given["length"], OFFSET: given.get(OFFSET) or 0, "vocabulary": positions, "E": width}
    return sizes, {"table": (("vocabulary",), ("E",)), "-> output": (("length",), ("E",))}, {}


LEARNED_POSITIONS = OperationFacts(
    name="learned_positions",
    rules={"": "POS-2"},
    arguments=("table", "length"),
    differentiated=("table",),
    copies=True,
    shape=learned_shape,
    dimensions=learned_dimensions,
    axes=learned_axes,
)


def sinusoidal_shape(case: Case, name: str, layout: str) -> Shape:
    return (case.options["length"], case.options["width"])


def sinusoidal_dimensions(case: Case) -> dict[str, int]:
    return {"length": case.options["length"], "model_width": case.options["width"]}


def sinusoidal_axes(case: Case) -> Described:
    given = case.options
    return {"length": given["length"], "E": given["width"], OFFSET: given.get(OFFSET) or 0}, {}, {}


SINUSOIDAL_POSITIONS = OperationFacts(
    name="sinusoidal_positions",
    rules={"": "POS-1"},
    arguments=("length", "width"),
    differentiated=(),
    shape=sinusoidal_shape,
    dimensions=sinusoidal_dimensions,
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
    arguments=("num_heads", "query_length", "key_length"),
    differentiated=(),
    shape=bias_shape,
    dimensions=bias_dimensions,
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
    axes=relative_axes,
)
