"""Latent attention: keys and values of all heads out of one latent, expanded or absorbed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from conformance.cases.declaration import Declaration
from conformance.checks.catalogue import Probe, make_probe
from conformance.checks.levels import ROBUST
from conformance.checks.refusals import Kind, Numbers, Refusal
from conformance.operations import JudgedOperation
from conformance.sampling.latent_attention import ALIKE, LONG, MODELS, SHORT, latent_cases

EMPTY = tuple(SHORT[0]._replace(**{axis: 0}) for axis in "BT")


def latent_attention_probes(declaration: Declaration) -> list[Probe]:
    probes = []
    forms = [("MLA-1", False), ("MLA-2", True)]
    for rule, absorbed in forms[: 1 if "absorbed" in declaration.lacking else 2]:
        probe = partial(make_probe, "latent_attention", rule)
        cases = partial(latent_cases, absorbed=(absorbed,), declaration=declaration)
        word = "absorbed" if absorbed else "expanded"
        probes += [
            probe(word, cases(), 2.0),
            probe(f"{word}, compressed queries", cases(plans=tuple(plan for plan in SHORT if plan.inner))),
            probe(f"{word}, widths that are equal", cases(plans=ALIKE)),
            probe(f"{word}, several tiles", cases(plans=LONG)),
            probe(f"{word}, widths of models", cases(plans=MODELS), 0.5),
            probe(f"{word}, pairs of halves", cases(pairings=("halves",))),
            probe(f"{word}, scaled rotation", cases(scalings=("yarn", "yarn", "llama3", "dynamic", "longrope"))),
            probe(f"{word}, NaN in tokens", cases(plans=(*SHORT, *LONG[:1]), special=True), 0.5, ROBUST),
            probe(f"{word}, no tokens", cases(plans=EMPTY, kinds=("none",), mask="none"), 0.5, ROBUST),
        ]
    return probes


def latent_attention_refusals(declaration: Declaration, array: Numbers) -> Iterator[Refusal]:
    s = SHORT[0]
    inputs = {"x": array(s.B, s.T, s.E), "query.weight": array(s.E, s.H * (s.D + s.R))}
    inputs |= {"key_value_down.weight": array(s.E, s.C + s.R), "key_value_norm.weight": array(s.C)}
    inputs |= {"key_value_up.weight": array(s.C, s.H * (s.D + s.V)), "output.weight": array(s.H * s.V, s.out)}
    sizes: dict[str, object] = {"num_heads": s.H, "rotary_width": s.R}

    def refuse(title: str, error: Kind, changed: dict[str, np.ndarray] | None = None, **options: object) -> Refusal:
        return array.refusal("latent_attention", "MLA-1", title, error, inputs | (changed or {}), **sizes | options)

    yield refuse("x of integers", TypeError, {"x": np.ones((s.B, s.T, s.E), int)})
    yield refuse("x of two axes", ValueError, {"x": array(s.T, s.E)})
    yield refuse("heads that do not share the columns", ValueError, num_heads=4)
    yield refuse("an odd number of rotated columns", ValueError, rotary_width=3)
    yield refuse("no rotated columns", ValueError, rotary_width=0)
    yield refuse("rotated columns only", ValueError, rotary_width=s.D + s.R + 1)
    yield refuse("a latent without its key", ValueError, {"key_value_down.weight": array(s.E, s.C)})
    yield refuse("an up-projection of keys only", ValueError, {"key_value_up.weight": array(s.C, s.H * s.D)})
    yield refuse("a bias of the up-projection", ValueError, {"key_value_up.bias": array(s.H * (s.D + s.V))})
    yield refuse("a bias of the norm", ValueError, {"key_value_norm.bias": array(s.C)})
    yield refuse("a norm of queries that are not compressed", ValueError, {"query_norm.weight": array(s.E)})
    yield refuse("positions of another length", ValueError, {"positions": np.arange(s.T + 1)})
    yield refuse("an unknown pairing", ValueError, pairing="thirds")
    yield refuse("a scale that is NaN", ValueError, scale=float("nan"))


LATENT_ATTENTION = JudgedOperation("latent_attention", latent_attention_probes, latent_attention_refusals)
