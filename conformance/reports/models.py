"""The steps of a model as tables and pictures, and as the JSON that `conformance port` and `trace` write."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from conformance.cases.declaration import split_names
from conformance.models.agreement import Agreement, StepAgreement
from conformance.models.departures import Departures
from conformance.models.stepwise import framework_of
from conformance.reports.content import Content, number
from conformance.reports.sentences import describe_finding
from conformance.reports.tables import right
from specification.checkpoints import flatten
from specification.masks import And, Dense, KeyPadding

if TYPE_CHECKING:
    from specification.parameters import ModelParameters

PICTURES = (".png", ".svg", ".pdf")


def parameters_table(parameters: ModelParameters) -> Table:
    sizes: dict[str, list[int]] = {}  # by block, or by the first two names of a path
    for name, array in flatten(parameters).items():
        words = name.split(".")
        start = words[: words.index("blocks") + 2] if "blocks" in words else words[:-1][:2]
        sizes.setdefault(".".join(start) or name, []).append(array.size)
    every = [size for found in sizes.values() for size in found]
    table = Table("part", *right("arrays", "numbers"), title=f"{len(every)} arrays, {sum(every):,} numbers")
    for part, found in sizes.items():
        table.add_row(part, str(len(found)), f"{sum(found):,}")
    return table


def probe_line(inputs: Sequence[np.ndarray], options: dict[str, Any]) -> str:
    shapes = " and ".join(f"{array.dtype} {list(array.shape)}" for array in inputs)
    return ", ".join([f"the input: {shapes}", *(f"{name} {mask_text(value)}" for name, value in options.items())])


def mask_text(value: object) -> str:
    if isinstance(value, And):
        return f"{mask_text(value.left)} and {mask_text(value.right)}"
    if isinstance(value, Dense):
        return "with holes"
    if isinstance(value, KeyPadding):
        return f"of {list(value.keep.sum(axis=1).tolist())} real keys"
    if isinstance(value, np.ndarray):
        return f"of {value.sum(axis=1).tolist()} real keys" if value.dtype == bool else f"{list(value.shape)}"
    return type(value).__name__.lower()


def steps_table(
    found: Agreement,
    packages: Sequence[str],
    wholes: Sequence[StepAgreement] = (),
    yours: Mapping[str, float] | None = None,
    dtype: str = "",
) -> Table:
    """Return a table of every step, its shape and range, and each package's largest error ratio; then whole models.

    yours: the error ratios of values from a file, by step, in a column of their own. dtype: the file's.

    A dash means that there is nothing to compare: the definition in float64, or a step without finite numbers.
    """
    packages = split_names(packages)
    table = Table(title=f"steps in {found.oracle.dtype}: largest error ratio, by the definition in float64")
    table.add_column("step", overflow="fold")
    for name in ("shape", "from", "to", *(framework_of(package).name for package in packages)):
        table.add_column(name, justify="right", no_wrap=True)
    if yours is not None:
        table.add_column(f"yours, {dtype}", justify="right")
    for place, step in enumerate([*found.steps, *wholes]):
        if place == len(found.steps):
            table.add_section()
        ratios = [step.ratios.get(package) for package in packages]
        cells = [ratio_text(None if ratio == 0 and not step.judged else ratio) for ratio in ratios]
        cells += [] if yours is None else [ratio_text(yours.get(step.name))]
        shape = " ".join(map(str, step.shape))
        table.add_row(step.name, shape, f"{step.smallest:.3g}", f"{step.largest:.3g}", *cells)
    return table


def ratio_text(ratio: float | None) -> Text:
    if ratio is None:
        return Text("-")
    return Text(format_ratio(ratio), style="" if ratio <= 1 else "bold red")


def format_ratio(ratio: float) -> str:
    """Format a ratio with two decimal places, very small and large ones with few digits, and an exact result as 0."""
    if ratio == 0:
        return "0"
    return f"{ratio:.1g}" if ratio < 0.005 else f"{ratio:.2f}" if ratio < 1e5 else f"{ratio:.3g}"


def unknown_format(path: Path) -> str | None:
    """Return why a picture cannot be written to this path; None if it can."""
    if importlib.util.find_spec("matplotlib") is None:
        return "not installed: matplotlib, which draws pictures"
    if path.suffix.lower() not in PICTURES:
        return f"{path}: a picture ends in one of {', '.join(PICTURES)}"
    return None if path.parent.is_dir() else f"{path}: the folder does not exist"


def draw_weights(weights: np.ndarray, queries: Sequence[str], keys: Sequence[str], title: str, path: Path) -> None:
    """Draw one panel for each head: the weights of one sequence [H, Q, K], with the tokens on both axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    heads = len(weights)
    columns = grid_columns(heads)
    rows = -(-heads // columns)
    cell = max(CELL, SMALLEST_PANEL / max(len(keys), len(queries)))
    labels = 0.6 + 0.07 * max(map(len, (*keys, *queries)))
    width, height = (cell * len(names) + labels for names in (keys, queries))
    size = (width * columns + 1.2, height * rows + 0.8)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    figure.set_layout_engine("constrained", w_pad=0.06, h_pad=0.06)
    for head, axis in enumerate(axes.flat):
        if head >= heads:
            axis.axis("off")
            continue
        image = axis.imshow(weights[head], cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="equal")
        axis.set_title(f"head {head}", fontsize=9)
        axis.set_xticks(range(len(keys)), keys, rotation=90, fontsize=FONT)
        axis.set_yticks(range(len(queries)), queries, fontsize=FONT)
        axis.tick_params(length=2, pad=1.5)
    figure.suptitle(title, fontsize=11)
    figure.supxlabel("key", fontsize=9)
    figure.supylabel("query", fontsize=9)
    figure.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.01, label="weight")
    figure.savefig(path, dpi=min(150, LARGEST_SIDE / max(size)))
    pyplot.close(figure)


CELL, FONT, SMALLEST_PANEL = 0.16, 8, 1.6
"""Inches for one token; points of its label, which then does not touch the next; inches for a panel's side."""
LARGEST_SIDE = 12000
"""Pixels at most, for sequences of any length."""


def grid_columns(heads: int) -> int:
    """Return a number of columns near a square that fills whole rows, if there is one."""
    nearest = math.ceil(math.sqrt(heads))
    return next((columns for columns in range(nearest, nearest + 2) if heads % columns == 0), nearest)


# --- as JSON ----------------------------------------------------------------------------------------------------------

SCHEMA = {"name": "transformer-conformance steps", "version": 1}


def steps_content(
    found: Agreement,
    packages: Sequence[str],
    wholes: Sequence[StepAgreement] = (),
    own: Departures | None = None,
    **more: object,
) -> Content:
    """Return what the command has judged. own: the user's values. more: further fields, such as the checkpoint."""
    every = [*found.steps, *wholes]
    beyond = found.first_beyond
    kept = all(ratio <= 1 for step in every for ratio in step.ratios.values())
    return {
        "schema": SCHEMA,
        **more,
        "dtype": found.oracle.dtype,
        "packages": list(split_names(packages)),
        "conforms": kept and (own is None or own.first is None),
        "judged": all(step.judged for step in every),
        "first_beyond": None if beyond is None else {"step": beyond[0], "package": beyond[1]},
        "steps": [step_content(step) for step in found.steps],
        "wholes": [step_content(whole) for whole in wholes],
    }


def step_content(step: StepAgreement) -> Content:
    numbers: Content = {"smallest": number(step.smallest), "largest": number(step.largest)}
    numbers["ratios"] = {package: number(ratio) for package, ratio in step.ratios.items()}
    return step._asdict() | {"shape": list(step.shape)} | numbers


def departures_content(found: Departures, file: Path) -> Content:
    ratios = {name: number(finding.ratio) for name, finding in found.findings.items()}
    first = (
        None if found.first is None else {"step": found.first, "message": describe_finding(found.findings[found.first])}
    )
    return {"file": str(file), "dtype": found.dtype, "ratios": ratios, "unknown": found.unknown, "first": first}
