"""Stored training runs on their page: curves, a run in lock-step, and what a translator looks at."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from benchmarks.results.plots import COLOURS, GRID, STYLE, WIDTH, as_svg, dark_rules
from reference_numpy import cross_entropy
from study.examples.parts import Shown
from study.plots import within_page
from training import packages, stepping
from training.lockstep import pictures
from training.lockstep import report as told

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = dict[str, Any]
SCHEMA = {"name": "transformer-conformance training", "version": 1}


class Epoch(NamedTuple):
    number: int
    loss: str
    accuracy: str


class Floor(NamedTuple):
    """The smallest loss that there can be, with a label smoothing over so many classes."""

    loss: str
    smoothing: float
    classes: int


class Run(NamedTuple):
    """A run of `python -m training`. about: its settings and versions. picture: its curves, as SVG.

    floor: None without label smoothing, where it is 0.
    """

    about: tuple[tuple[str, str], ...]
    epochs: tuple[Epoch, ...]
    picture: Markup
    floor: Floor | None


class Reviews(NamedTuple):
    run: Run
    baseline: str


class Translation(NamedTuple):
    """heads: for each head of the last block what it looks at."""

    run: Run
    text: str
    translation: str
    heads: tuple[Shown, ...]


class Lockstep(NamedTuple):
    """rows: for each quantity of a step, its name and the largest error of each implementation, in bounds."""

    about: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]
    verdicts: tuple[str, ...]
    picture: Markup


class Training(NamedTuple):
    """None for what is not stored."""

    reviews: Reviews | None
    translation: Translation | None
    lockstep: Lockstep | None

    @property
    def style(self) -> Markup:
        """Of the page: the colours of the pictures follow its own."""
        return Markup(dark_rules())


def training(path: Path) -> Training:
    """Read stored runs. ValueError for a file that has none."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"{path} is no file of stored training runs of version {SCHEMA['version']}")
    kinds: tuple[tuple[str, Callable[[Result], Any]], ...] = (
        ("reviews", reviews), ("translation", translation), ("lockstep", locked),
    )  # fmt: skip
    return Training(**{name: read(found[name]) if name in found else None for name, read in kinds})


def about(result: Result) -> tuple[tuple[str, str], ...]:
    settings = ", ".join(f"{name} {value}" for name, value in result["settings"].items())
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return ("trained in", result["package"]), ("settings", settings), ("versions", versions), ("on", result["when"])


def run(result: Result, name: str) -> Run:
    held_out = result["held_out"]
    epochs = tuple(Epoch(epoch + 1, f"{loss:.3f}", f"{share:.2%}") for _, epoch, loss, share in held_out)
    smoothing, least = result["settings"].get("label_smoothing"), smallest_loss(result)
    floor = None if least is None else Floor(f"{least:.3f}", smoothing, result["classes"])
    return Run(about(result), epochs, pictured(f"curves {name}", curves(result)), floor)


def smallest_loss(result: Result) -> float | None:
    """The loss of a model that gives every class its share of the target, which is the least (LOSS-1).

    None without label smoothing, or where the result does not say how many classes there are.
    """
    smoothing, classes = result["settings"].get("label_smoothing"), result.get("classes")
    if not smoothing or classes is None:
        return None
    shares = np.full((1, classes), smoothing / classes)
    shares[0, 0] += 1 - smoothing
    return float(cross_entropy(np.log(shares), np.array([0]), label_smoothing=smoothing))


def reviews(result: Result) -> Reviews:
    return Reviews(run(result, "reviews"), f"{result['baseline']:.2%}")


def translation(result: Result) -> Translation:
    seen = result["attention"]
    heads = tuple(
        Shown(f"head {number}", np.array(weights), tuple(seen["target"]), tuple(seen["source"]))
        for number, weights in enumerate(seen["weights"])
    )
    return Translation(run(result, "translation"), seen["text"], seen["translation"], heads)


def locked(report: Result) -> Lockstep:
    names = tuple(one["name"] for one in report["implementations"])
    rows = tuple(
        (name, tuple(told.cell(one, name) for one in report["implementations"])) for name in told.quantities(report)
    )
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    facts = (
        ("task", report["task"]),
        ("dtype", report["dtype"]),
        ("steps", str(report["steps"])),
        ("versions", versions),
    )
    verdicts = tuple(told.verdict(one) for one in report["implementations"])
    return Lockstep(facts, names, rows, verdicts, pictured("losses in lock-step", drift(report)))


# --- how each package finds gradients ---------------------------------------------------------------------------------


def gradients() -> Iterator[tuple[str, str]]:
    """For each package its name and the function of the program that finds loss and gradients."""
    methods = (packages.Torch.step, vars(packages.Jax)["compiled_step"].func, packages.Reference.step)
    for package, method in zip(packages.PACKAGES, methods, strict=True):
        yield package, textwrap.dedent(inspect.getsource(method))


def step() -> str:
    """The source of one step of training."""
    return inspect.getsource(stepping.advance)


# --- pictures ---------------------------------------------------------------------------------------------------------


def pictured(name: str, draw: Callable[[Any], None]) -> Markup:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        lacking = "The picture needs {}, which is not installed: pip install -e .[plots]"
        return Markup('<p class="missing">{}</p>').format(lacking.format(error.name))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
        draw(figure.subplots(2, 1, sharex=True))
        return within_page(as_svg(figure), name.replace(" ", "-"))


def curves(result: Result) -> Callable[[Any], None]:
    """Loss and accuracy, on what is trained on and on what is held out."""

    def draw(axes: Sequence[Axes]) -> None:
        for place, (ax, name) in enumerate(zip(axes, ("loss", "accuracy"), strict=True)):
            ax.plot(*columns(result["training"], 0, 1 + place), color=COLOURS[0], lw=1, label="training")
            ax.plot(*columns(result["held_out"], 0, 2 + place), "o-", color=COLOURS[1], ms=4, label="held out")
            ax.set_ylabel(name)
        least = smallest_loss(result)
        if least is not None:
            axes[0].axhline(least, color=GRID, ls="--", label="smallest possible loss")
            axes[0].legend()
        if "baseline" in result:
            axes[1].axhline(result["baseline"], color=GRID, ls="--", label="naive Bayes on words")
        axes[1].set_xlabel("step")
        axes[1].legend()

    return draw


def columns(rows: list[list[float]], *places: int) -> list[list[float]]:
    return [[row[place] for row in rows] for place in places]


def drift(report: Result) -> Callable[[Any], None]:
    """The losses of runs that go on freely, and how far their weights drift apart."""

    def draw(axes: Sequence[Axes]) -> None:
        losses, drifts = axes
        pictures.draw(losses, drifts, report)
        losses.legend()

    return draw
