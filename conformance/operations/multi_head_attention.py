"""Multi-head attention: projections, attention in every head, and one more projection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from conformance.cases.declaration import Declaration, Sizes, adapt_sizes
from conformance.checks.catalogue import Probe, make_probe
from conformance.checks.refusals import Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling import strategies as generation
from conformance.sampling.draws import Rows
from conformance.sampling.plan.attention import has_few_columns, rows_of_attention
from conformance.sampling.strategies import SHORT

SIZES = Sizes(B=2, H=2, G=2, Q=3, K=5, D=4, V=4)
"""Of calls that must be refused."""
SQUARE = Sizes(B=2, H=3, G=3, Q=5, K=7, D=4, V=4)
"""Of projections with as many rows as columns, as most models have, so that a transposed one fits too."""
MODELS = (
    *((65, 5, 4, 3), (6, 129, 4, 3), (6, 5, 257, 3), (6, 5, 4, 576), (33, 33, 33, 33)),
    *((1025, 40, 24, 1025), (300, 70, 6, 5), (2000, 7, 300, 40)),
)
"""Widths of query, key, value and output."""


def multi_head_attention_probes(declaration: Declaration) -> list[Probe]:
    probe = partial(make_probe, "multi_head_attention")
    heads = partial(generation.multi_head_cases, declaration=declaration)

    def plan_rows(rule: str, plan: str) -> Rows:
        return rows_of_attention(
            partial(heads, separate=rule == "MHA-2"), plan, rule, declaration, has_few_columns, large=True
        )

    return [
        probe("MHA-1", "fused projections", heads(), weight=2.0),
        probe("MHA-1", "square weights", heads(plans=(SQUARE,), model_widths=(SQUARE.H * SQUARE.D,) * 4)),
        probe("MHA-2", "separate heads", heads(separate=True), weight=2.0),
        *(probe(rule, plan, plan_rows(rule, plan)) for rule in ("MHA-1", "MHA-2") for plan in ("heads", "widths")),
        *(probe(rule, "model widths", wide_models(declaration, rule == "MHA-2"), 2.0) for rule in ("MHA-1", "MHA-2")),
    ]


def wide_models(declaration: Declaration, separate: bool) -> Rows:
    limit = declaration.limits.get("model_width", max(map(max, MODELS)))
    widths = dict.fromkeys((min(a, limit), min(b, limit), min(c, limit), min(d, limit)) for a, b, c, d in MODELS)
    cases = partial(generation.multi_head_cases, separate, plans=SHORT, declaration=declaration)
    return Rows(lambda: tuple(cases(model_widths=model) for model in widths))


def multi_head_attention_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    (B, H, G, Q, K, D, V), E = adapt_sizes(SIZES, declaration), 6
    refuse = partial(array.refusal, "multi_head_attention")
    inputs = {"query": array(B, Q, E), "key": array(B, K, E), "value": array(B, K, E)}
    inputs |= {"query.weight": array(E, H * D), "key.weight": array(E, G * D), "value.weight": array(E, G * V)}
    inputs["output.weight"] = array(H * V, E)
    if H * D % 3:
        yield refuse("MHA-1", "3 heads of 8 columns", ValueError, inputs, num_heads=3)
    transposed = inputs | {"query.weight": array(H * D, E)}
    yield refuse("MHA-1", "weight [out, in]", ValueError, transposed, num_heads=H)
    wider = inputs | {"value.weight": array(E, G * (V + 1))}
    yield refuse("MHA-2", "an output for other widths", ValueError, wider, num_heads=H)


MULTI_HEAD_ATTENTION = JudgedOperation(
    "multi_head_attention", multi_head_attention_probes, multi_head_attention_refusals
)
