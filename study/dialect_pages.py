"""The pages of the dialects: one for each, and one that compares all their choices."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment

from conformance.side_by_side.operations import OPERATIONS
from conformance.side_by_side.sources import LABELS
from specification.configuration import Configuration
from specification.dialects import DIALECTS
from specification.masks import KeyPadding
from study.checkpoints import small
from study.correspondence import correspondence, lines
from study.dialect_texts import about, call, hyperparameters, in_words, option_text, optional, structure_facts
from study.dialects import Option, Studied, agreement, missing, studied
from study.pages import paragraphs

PAGES = {
    "norm_order": "blocks", "norm": "norm_variants", "norm_eps": "layer_norm", "activation": "feed_forward",
    "scale": "scores", "empty_rows": "softmax", "positions": "positions", "position_padding": "positions",
    "scaled_embedding": "embedding", "source_padding": "transformer", "target_padding": "transformer",
    "target_mask": "masks", "pooling": "transformer", "softcap": "scores", "attention_layers": "blocks",
    "relative_furthest": "positions", "scaled_output": "transformer", "output_softcap": "transformer",
    "patch_size": "embedding", "experts": "experts", "latent_eps": "latent_attention",
}  # fmt: skip
"""Where the operation is studied that an option of the configuration changes."""


class Shade(NamedTuple):
    """A cell of a heat map. shade: from -1 to 1."""

    text: str
    shade: float


def page_of(dialect: str) -> str:
    return f"dialect-{dialect}"


def heat(array: np.ndarray) -> list[list[list[Shade]]]:
    """Tables of cells, one for each sequence; the largest number has the full shade. Whole numbers have none."""
    flat = array.reshape(-1, *array.shape[-2:]) if array.ndim > 2 else array[None]
    scale = float(np.abs(array).max(initial=0)) if array.dtype.kind == "f" else np.inf
    return [[[Shade(short(x), round(float(x) / (scale or 1.0), 3)) for x in row] for row in one] for one in flat]


def short(value: float) -> str:
    """Two digits; 0 as 0."""
    return "0" if value == 0 else f"{value:.2g}".replace("-", "\N{MINUS SIGN}")


def plain(value: object) -> Any:
    """A mask's array, and everything else as it is."""
    return value.keep if isinstance(value, KeyPadding) else value


def given(dialect: str) -> list[dict[str, Any]]:
    """Inputs and options of the call as tables of text."""
    one = small()[dialect]
    found = []
    for name, value in {**one.inputs, **one.options}.items():
        array = np.asarray(plain(value))
        kind = "KeyPadding" if isinstance(value, KeyPadding) else str(array.dtype)
        shown = array.astype(int) if array.dtype == bool else array
        found.append({"name": name, "kind": kind, "shape": list(array.shape), "tables": heat(shown)})
    return found


def difference(option: Option, found: Studied) -> dict[str, Any]:
    """One option that is not the default: what it is, and what it changes."""
    effect = found.alone[option.name]
    page = next(one for one in OPERATIONS if one.name == PAGES[option.name])
    tables = [] if effect.change is None else heat(effect.change)
    text = option_text(option.name, found.configuration)
    return {"option": option, "text": text, "page": page, "effect": effect, "tables": tables}


def content(dialect: str, frameworks: bool) -> dict[str, Any]:
    """Everything that stands on the page of one dialect. frameworks: whether all three packages are run."""
    found, names = studied(dialect), list(small())
    place, change = names.index(dialect), found.together.change
    record = DIALECTS[dialect]
    return {
        "dialect": dialect, "texts": paragraphs(about(dialect)), "found": found, "call": call(dialect),
        "reader": dialect.replace("-", "_"), "takes": hyperparameters(dialect), "given": given(dialect),
        "differences": [difference(option, found) for option in found.options],
        "together": [] if change is None or len(found.switched) < 2 else heat(change),
        "cannot": len(found.options) > len(found.switched), "result": heat(found.output),
        "usual": float(np.median(np.abs(found.output))), "facts": structure_facts(dialect, found.parameters),
        "tutorial": record.tutorial, "source": record.source, "labels": LABELS,
        "optional": optional(dialect),
        "names": lines(correspondence(dialect)), "agreement": agreement(dialect) if frameworks else None,
        "missing": missing(), "before": names[place - 1] if place else None,
        "after": names[place + 1] if place + 1 < len(names) else None,
    }  # fmt: skip


def overview() -> dict[str, Any]:
    """The choices of all dialects beside each other, and the definition's defaults."""
    configurations = {name: studied(name).configuration for name in small()}
    defaults = {field.name: field.default for field in fields(Configuration) if field.name != "num_heads"}
    rows = {name: {dialect: getattr(one, name) for dialect, one in configurations.items()} for name in defaults}
    used = {name: values for name, values in rows.items() if set(values.values()) != {defaults[name]}}
    return {
        "dialects": {name: studied(name) for name in small()}, "rows": used, "defaults": defaults, "pages": PAGES,
        "alike": [name for name in rows if name not in used],
        "first": {name: paragraphs(about(name))[0] for name in small()},
    }  # fmt: skip


def rendered(made: Environment, frameworks: bool) -> dict[str, str]:
    """The pages by name. frameworks: whether the agreement of all three packages is computed."""
    template = made.get_template("dialect.html")
    names = {name: page_of(name) for name in small()}
    found = {
        page: template.render(page=page, page_of=page_of, short=short, in_words=in_words, **content(name, frameworks))
        for name, page in names.items()
    }
    whole = made.get_template("dialects.html")
    return found | {
        "dialects": whole.render(page="dialects", page_of=page_of, short=short, in_words=in_words, **overview())
    }
