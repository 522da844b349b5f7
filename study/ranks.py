"""The page of attention over ranks: a ring step by step, merging, and the ports beside the definition."""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment

from conformance.side_by_side.columns import Columns, rows_of
from conformance.side_by_side.operations import OPERATIONS
from conformance.side_by_side.rules import rule_texts
from conformance.side_by_side.sources import PACKAGES, functions_in, functions_of
from reference_numpy import attention, attention_vjp, materialize
from specification.distributed import LAYOUTS, even_pieces
from specification.masks import Causal
from study import elsewhere, pages, ranks_definition
from study.dialect_pages import short

PARTS = (("ring", "The ring"), ("merging", "Merging"), ("code", "Code"), ("heads", "Heads for rows"),
         ("models", "Models"), ("rules", "Rules"))  # fmt: skip
LENGTH, RANKS, MANY = 12, 3, 64
"""What is drawn; and how many ranks there are with as many tokens each, to compare their work."""
RING, MODELS = "distributed.py", "distributed_models.py"
SHOWN: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("ring_attention", RING, ("ring_attention", "RingAttention.forward"), ("ring_attention", "ring_forward")),
    ("ring_backward", RING, ("RingAttention.backward",), ("ring_backward",)),
    ("pairs", RING, ("pairs",), ("pairs",)),
    ("head_parallel_attention", RING, ("head_parallel_attention",), ("head_parallel_attention",)),
    (
        "decoder",
        MODELS,
        ("decoder", "compute_decoder_part", "apply_blocks"),
        ("decoder", "compute_decoder_part", "apply_blocks"),
    ),
)
"""Name and the ports' file of each block; by port, the function and the one that it hands its work to."""


class Part(NamedTuple):
    """A step of a rank. allowed: [queries, keys]. hidden: (row, column, rows, columns) of pieces without any pair."""

    owner: int
    queries: np.ndarray
    keys: np.ndarray
    allowed: np.ndarray
    hidden: list[tuple[int, int, int, int]]


class Layout(NamedTuple):
    """parts: by rank, then by step."""

    name: str
    parts: list[list[Part]]

    @property
    def work(self) -> list[int]:
        """Pairs that each rank computes."""
        return [int(sum(part.allowed.sum() for part in of_rank)) for of_rank in self.parts]

    @property
    def share(self) -> str:
        """The work of the busiest rank, in units of the mean."""
        return f"{max(self.work) / np.mean(self.work):.2f}"


def layout(name: str, length: int, ranks: int) -> Layout:
    """What is computed where, under a causal mask."""
    allowed = materialize(Causal(), length, length)[0, 0]
    held = even_pieces(length, ranks, name)
    owners = [[(rank - step) % ranks for step in range(ranks)] for rank in range(ranks)]
    return Layout(name, [[part(allowed, held[i], held[j], j) for j in row] for i, row in enumerate(owners)])


def part(allowed: np.ndarray, own: Any, here: Any, owner: int) -> Part:
    queries, keys = (np.concatenate([np.arange(*piece) for piece in pieces]) for pieces in (own, here))
    hidden = [
        (int(np.searchsorted(queries, i)), int(np.searchsorted(keys, j)), m - i, n - j)
        for (i, m), (j, n) in product(own, here)
        if not allowed[i:m, j:n].any()
    ]
    return Part(owner, queries, keys, allowed[np.ix_(queries, keys)], hidden)


def differences() -> dict[str, str]:
    """How far, in random numbers, what ranks compute is from attention of the whole, and how far the mean of parts."""
    query, key, value, cotangent = np.random.default_rng(0).normal(size=(4, 1, RANKS, LENGTH, 4))
    arrays = query, key, value
    whole, gradients = attention(*arrays, mask=Causal()), attention_vjp(*arrays, cotangent, mask=Causal())[:3]
    worst = dict.fromkeys(("ring", "heads", "mean", "backward"), 0.0)
    for name in LAYOUTS:
        sums: Any = 0
        for ring in [ranks_definition.Ring(Causal(), rank, RANKS, name) for rank in range(RANKS)]:
            pairs = [*ranks_definition.pairs(*arrays, ring)]
            found = {
                "ring": ranks_definition.ring_attention(*arrays, ring),
                "heads": ranks_definition.head_parallel_attention(*arrays, ring),
                "mean": np.mean([ranks_definition.compute_part(pair)[0] for pair in pairs], axis=0),
            }
            for what, rows in found.items():
                worst[what] = max(worst[what], abs(rows - whole[:, :, pairs[0].queries]).max())
            sums += np.stack(ranks_definition.ring_backward(*arrays, cotangent, ring))
        worst["backward"] = max(worst["backward"], abs(sums - np.stack(gradients)).max())
    return {what: short(number) for what, number in worst.items()}


def block(name: str, file: str, *ports: tuple[str, ...]) -> pages.Block:
    own = functions_in(inspect.getsource(ranks_definition), "study", "ranks_definition.py")
    found = [own.get(name) or functions_of(PACKAGES[0], "transformer.py")[name]]
    for package, (first, *inner) in zip(PACKAGES[1:], ports, strict=True):
        functions = functions_of(package, file)
        inside = [step._replace(inside=one) for one in inner for step in functions[one].steps]
        found.append(functions[first]._replace(steps=(*functions[first].steps, *inside)))
    head, body = rows_of([one.head for one in found]), rows_of([one.steps for one in found])
    made = pages.block_of(Columns(file, name, tuple(found), head, body))
    return made._replace(docstring=made.docstring.partition("\n\nArgs:")[0], sayings=())


def rendered(made: Environment) -> dict[str, str]:
    """The page by its name."""
    merging = next(one for one in OPERATIONS if one.name == "companions")
    places = [(file, name) for _, file, *ports in SHOWN for names in ports for name in (*names, "RingAttention")]
    page = made.get_template("ranks.html").render(
        page="ranks", parts=PARTS, length=LENGTH, ranks=RANKS, many=MANY, differences=differences(),
        layouts=[(layout(name, LENGTH, RANKS), layout(name, LENGTH // RANKS * MANY, MANY)) for name in LAYOUTS],
        formulas=[pages.formula(one) for one in merging.formulas], blocks_of={one[0]: block(*one) for one in SHOWN},
        elsewhere=elsewhere.meanings(places), rules=[text for rule, text in rule_texts().items() if "DIST" in rule],
    )  # fmt: skip
    return {"ranks": page}
