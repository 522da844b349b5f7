"""Examples on a page: which operation has which, and their arrays as tables of shaded cells."""

from __future__ import annotations

import math
from collections.abc import Callable

from jinja2 import Environment
from markupsafe import Markup

from conformance.cases.case import Case, brief
from conformance.side_by_side.sources import LABELS, PACKAGES
from study.examples import beams, decoding, generation, masks, models, training
from study.examples.parts import Part, Shown, Table, figure, of_bound
from study.examples.running import named
from study.examples.working import Worked, worked

SEVERAL: dict[str, Callable[[], list[Part]]] = {
    "masks": masks.parts,
    "blocks": models.blocks,
    "transformer": models.transformer,
    "decoding": decoding.parts,
    "generation": lambda: [
        named(f"the example {one.__name__}", one) for one in (generation.greedy, generation.sample, beams.beam_search)
    ],
    "schedules": training.schedules,
    "initializers": training.initial_weights,
}
"""Pages whose example is more than one call of one operation."""


def parts_of(page: str) -> list[Part]:
    """The examples of a page; none where it has none."""
    return named(f"the examples of the page {page}.html", SEVERAL.get(page, lambda: single(page)))


def single(page: str) -> list[Part]:
    found = worked(page)
    return [] if found is None else [part_of(found)]


def rendered(page: str, made: Environment) -> Markup | None:
    parts = parts_of(page)
    return Markup(made.get_template("example.html").render(parts=parts, figure=figure)) if parts else None


# --- one call ---------------------------------------------------------------------------------------------------------


def part_of(found: Worked) -> Part:
    """An example that is one call, as the only part of its page."""
    given, steps = (tuple(Shown(*one) for one in arrays.items()) for arrays in (found.inputs, found.steps))
    rows = tuple((name, *map(told, distances.values())) for name, distances in found.apart.items())
    heads = ("array", *(f"{LABELS[package]} from NumPy" for package in PACKAGES[1:]))
    table = Table("The largest difference of every array", heads, rows, found.example.note, folded=True)
    errors = {one.package: one.ratio for one in found.results}
    verdict = of_bound(found.disagreement, errors)
    return Part("", found.example.says, call(found.example.case), given, steps, (table,), verdict)


def told(distance: float) -> str:
    return "has no such step" if math.isnan(distance) else f"{distance:.2g}"


def call(case: Case) -> str:
    """The call in short: arrays by their names, which stand below; those of parameters as `parameters`."""
    arrays = dict.fromkeys("parameters" if "." in name else name for name in case.inputs)
    first = sorted(arrays, key=lambda name: name != "parameters")
    given = [*first, *(f"{name}={brief(value)}" for name, value in case.options.items())]
    return f"{case.operation}({', '.join(given)})"
