"""What a peer is asked beside the catalogue, so that each cause of a divergence is seen under its own rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from conformance.cases.case import Case
from conformance.cases.declaration import Declaration
from conformance.cases.expectations import allowed_pairs, empty_rows
from conformance.cases.features import is_norm, rule_of
from conformance.checks.catalogue import TWIN, Probe
from conformance.sampling import strategies as generation
from conformance.sampling.layers import norm_cases
from conformance.sampling.operations import operation_cases

HEADS = "multi_head_attention"
Cases = Callable[..., st.SearchStrategy[Case]]
EPS_LEFT_OUT = "eps left out"
"""The catalogue's probe of the default."""


ATTENTIONS = ("attention", HEADS)


def dtype_rule(operation: str) -> str:
    return "ATT-9" if operation in ATTENTIONS else rule_of("dtype", operation)


def gradient_rule(operation: str) -> str:
    return "ATT-12" if operation in ATTENTIONS else rule_of("gradients", operation)


def dtype_probe(operation: str, rule: str, dtype: str, declaration: Declaration) -> Probe:
    """Plain agreement in one dtype. Norms are asked for level rows, since NORM-4 has its own turn."""
    if operation == "attention":
        cases = generation.attention_cases(others=False, dtypes=(dtype,), declaration=declaration)
    else:
        cases = operation_cases(operation, (dtype,), declaration).filter(level)
    return Probe(rule, f"{dtype} inputs", (operation,), cases, weight=3.0)


def gradient_probe(operation: str, rule: str, dtype: str, declaration: Declaration) -> Probe:
    """Agreement with gradients in one dtype."""
    draw: dict[str, Cases] = {"attention": generation.attention_cases, HEADS: generation.multi_head_cases}
    if operation in draw or is_norm(operation):
        cases = draw[operation] if operation in draw else partial(norm_cases, operation)
        drawn = cases(focus=("gradients",), dtypes=(dtype,), declaration=declaration)
    else:
        drawn = operation_cases(operation, (dtype,), declaration)
    return Probe(rule, f"gradients in {dtype}", (operation,), drawn)


def probes(operation: str, declaration: Declaration) -> Iterator[Probe]:
    """Attention's rules in multi-head attention."""
    if operation == HEADS:
        heads = generation.multi_head_cases(declaration=declaration)
        if declaration.convention("empty_rows") == "zero":
            with_empty_rows = heads.filter(lambda case: bool(empty_rows(case).any()))
            yield Probe("ATT-6", "empty rows in multi-head attention", (HEADS,), with_empty_rows)
        if declaration.convention("isolation") == "strict":
            whole = generation.multi_head_cases(declaration=declaration.add_conventions(empty_rows="any"))
            yield Probe("MASK-7", "hidden NaN in multi-head attention", (HEADS,), hidden_tokens(whole), TWIN)


@st.composite
def hidden_tokens(draw: st.DrawFn, cases: st.SearchStrategy[Case]) -> tuple[Case, Case]:
    """(with NaN or infinity in tokens that no query of any head may attend to, the clean case); no gradients."""
    clean = replace(draw(cases), cotangents={})
    hidden: Any = ~allowed_pairs(clean).any((1, 2))
    assume(hidden.any())
    poison = draw(st.sampled_from((np.nan, np.inf, -np.inf)))
    planted = {
        n: np.where(hidden[..., None], a.dtype.type(poison), a) for n in ("key", "value") for a in (clean.inputs[n],)
    }
    return replace(clean, inputs=clean.inputs | planted, special=True), clean


def level(case: Case) -> bool:
    """No row of a norm has a mean far beyond its deviation; constant rows and rows with NaN do not count."""
    if "x" not in case.inputs or "weight" not in case.inputs:
        return True
    x, axes = case.inputs["x"].astype(np.float64), tuple(range(-case.inputs["weight"].ndim, 0))
    with np.errstate(invalid="ignore"):
        mean, deviation = np.abs(x.mean(axes)), x.std(axes)
        return not ((mean > 4 * deviation) & (deviation > 0)).any()
