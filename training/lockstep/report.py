"""A run as plain data, ready for strict JSON, as a page, and as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.reports import page
from conformance.reports.content import clean_text, number, real
from conformance.reports.sentences import describe_detail
from conformance.reports.versions import versions
from training.lockstep.expected import QUANTITIES
from training.lockstep.pictures import picture
from training.lockstep.running import Course, Departure, Lockstep

Content = dict[str, Any]

SCHEMA = {"name": "transformer-conformance lockstep", "version": 1}
MOST = 100
"""Departures of an implementation that are listed; the rest is counted."""
DECADES = range(-15, 1, 3)
"""Powers of ten; when the free runs have drifted so far apart is reported."""


def content(result: Lockstep) -> Content:
    """Return the report. A number that JSON lacks is "NaN", "Infinity" or "-Infinity"."""
    return {
        "schema": SCHEMA,
        "versions": versions(),
        "task": result.task,
        "dtype": result.dtype,
        "seed": result.seed,
        "steps": len(result.losses),
        "conforms": result.conforms,
        "losses": [number(loss) for loss in result.losses],
        "implementations": [course_content(course) for course in result.courses],
    }


def course_content(course: Course) -> Content:
    departures = [departure_content(departure) for departure in course.departures]

    def first_beyond(limit: float) -> int | None:
        return next((step for step, distance in enumerate(course.drift) if not distance <= limit), None)

    return {
        "name": clean_text(course.name),
        "conforms": not departures,
        "first": departures[0] if departures else None,
        "departures": departures[:MOST],
        "departure_count": len(departures),
        "worst": {quantity: [number(ratio) for ratio in ratios] for quantity, ratios in course.worst.items()},
        "losses": [number(loss) for loss in course.losses],
        "drift": [number(drift) for drift in course.drift],
        "furthest": course.furthest[-1] if course.furthest else None,
        "drifted": {f"1e{power}": first_beyond(10.0**power) for power in DECADES},
    }


def departure_content(departure: Departure) -> Content:
    finding = departure.finding
    found: Content = {"step": departure.step, "quantity": departure.quantity, "tensor": clean_text(finding.name)}
    told = None if finding.detail is None else describe_detail(finding.detail)
    told = f"{told} (raised at {finding.raised_at})" if finding.raised_at else told
    found |= {"ratio": number(finding.ratio), "message": told and clean_text(told)}
    numbers = {"got": finding.got, "expected": finding.expected, "bound": finding.bound}
    numbers["error"] = abs(finding.got - finding.expected)
    if finding.kind != "value":
        return found | dict.fromkeys(("index", *numbers))
    return found | {"index": list(finding.index)} | {name: number(value) for name, value in numbers.items()}


# --- words ------------------------------------------------------------------------------------------------------------


def quantities(report: Content) -> list[str]:
    """Those that at least one implementation told, in the order of a step."""
    told = {quantity for one in report["implementations"] for quantity in one["worst"]}
    return [quantity for quantity in ("call", *QUANTITIES) if quantity in told]


def cell(implementation: Content, quantity: str) -> str:
    """The largest error of a quantity in all steps, in bounds."""
    worst = max(map(real, implementation["worst"].get(quantity, [])), default=None)
    return "not told" if worst is None else "exact" if worst == 0 else f"{worst:.2g}"


def departure_text(departure: Content) -> str:
    name = f"{departure['quantity']} {departure['tensor']}".strip()
    if departure["message"]:
        return f"step {departure['step']}: {name} {departure['message']}"
    index = departure["index"] or ""
    got, expected, error, bound = (real(departure[key]) for key in ("got", "expected", "error", "bound"))
    told = f"got {got!r}, expected {expected!r}, error {error:.3g}, bound {bound:.3g}"
    return f"step {departure['step']}: {name}{index}: {told}"


def verdict(implementation: Content) -> str:
    if implementation["first"] is None:
        return f"{implementation['name']}: every quantity of every step is within its bound"
    return f"{implementation['name']} departs, first at {departure_text(implementation['first'])}"


def shown_steps(report: Content) -> list[int]:
    """1, 2, 5, 10, ... and the last step, counted from 0."""
    count = report["steps"]
    chosen = {n * 10**power - 1 for power in range(len(str(count))) for n in (1, 2, 5)} | {count - 1}
    return sorted(step for step in chosen if 0 <= step < count)


def free_rows(report: Content) -> Iterator[list[str]]:
    """Step, the definition's loss, and how far each implementation is off: its loss, and its weights."""
    for step in shown_steps(report):
        loss = real(report["losses"][step])
        row = [str(step), f"{loss:.6f}"]
        for one in report["implementations"]:
            off = (abs(real(one["losses"][step]) - loss), real(one["drift"][step])) if step < len(one["drift"]) else ()
            row += [f"{number:.1e}" for number in off] or ["", ""]
        yield row


# --- terminal and page ------------------------------------------------------------------------------------------------


def terminal(report: Content) -> RenderableType:
    names = [one["name"] for one in report["implementations"]]
    title = "In lock-step: the largest error, divided by its bound; at most 1 conforms"
    judged = Table("quantity", *names, title=title, title_justify="left")
    for quantity in quantities(report):
        cells = [cell(one, quantity) for one in report["implementations"]]
        judged.add_row(quantity, *(Text(text, style=style(text)) for text in cells))
    heads = [f"{name}\n{what}" for name in names for what in ("loss", "weights")]
    free = Table("step", "loss", *heads, title="Running free: how far off", title_justify="left")
    for row in free_rows(report):
        free.add_row(*row)
    drifted = [one for one in report["implementations"] if one["drift"] and real(one["drift"][-1]) > 0]
    lines = [Text(f"{one['name']}: {one['furthest']} has drifted furthest") for one in drifted]
    lines += [Text(verdict(one), style="green" if one["conforms"] else "bold red") for one in report["implementations"]]
    return Group(judged, free, *lines)


def style(text: str) -> str:
    try:
        return "bold red" if float(text) > 1 else "green"
    except ValueError:
        return "green" if text == "exact" else "dim"


def as_page(report: Content) -> str:
    """Return one self-contained page. Everything from the report is escaped."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((Path(__file__).parent / "page.html").read_text())
    css = Markup((page.HERE / "page.css").read_text())
    rows = [(name, [cell(one, name) for one in report["implementations"]]) for name in quantities(report)]
    helpers: dict[str, Any] = {"cells": rows, "free": list(free_rows(report)), "verdict": verdict, "style": css}
    helpers |= {"line": departure_text, "picture": Markup(picture(report))}
    return template.render(report=report, violated=lambda text: style(text) == "bold red", **helpers)
