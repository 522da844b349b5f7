"""`python -m training`: train on reviews, classify texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from conformance.cli.console import console, interrupted, refuse
from conformance.runner.compiled_code import keep_compiled_code
from training.packages import PACKAGES, Package

app = typer.Typer(add_completion=False, help="The same training run in all three packages.", no_args_is_help=True)

Name = Annotated[str, typer.Option("--package", help=f"one of {', '.join(PACKAGES)}", metavar="NAME")]
DEFAULT = next(iter(PACKAGES))


def package_named(name: str) -> Package:
    if name not in PACKAGES:
        refuse(f"--package must be one of {', '.join(PACKAGES)}, got {name!r}")
    keep_compiled_code()
    return PACKAGES[name]


@contextmanager
def one_line_for_errors() -> Iterator[None]:
    """Exit with code 2 and a line for wrong input, a full disk, or a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = error.name if error.name in ("torch", "jax") else "training"
        refuse(f"{error.name} is not installed: pip install 'transformer-conformance[{extra}]'")
    except ValueError as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename or 'a file'} was not read or written: {error.strerror or error}")
    except KeyboardInterrupt:
        interrupted()


@app.command()
def reviews(
    package: Name = DEFAULT,
    data: Annotated[
        Path | None,
        typer.Option(
            help="a folder like aclImdb, with train/pos/*.txt and so on; else movie sentences", metavar="FOLDER"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="for logs and checkpoints", metavar="FOLDER")] = Path(
        "build/training/reviews"
    ),
    resume: Annotated[bool, typer.Option("--resume", help="go on from the newest checkpoint of --out")] = False,
    steps: Annotated[int | None, typer.Option(help="end after so many steps in all", min=1)] = None,
    tutorial: Annotated[bool, typer.Option("--tutorial", help="the tutorial's settings in place of ours")] = False,
    epochs: Annotated[int | None, typer.Option(help="how often all texts are read")] = None,
    seed: Annotated[int | None, typer.Option(help="by which everything random is drawn")] = None,
    width: Annotated[int | None, typer.Option(help="of the model")] = None,
    heads: Annotated[int | None, typer.Option(help="of attention")] = None,
    depth: Annotated[int | None, typer.Option(help="blocks")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="its largest size")] = None,
    longest: Annotated[int | None, typer.Option(help="words after which a text is cut")] = None,
    spread: Annotated[float | None, typer.Option(help="deviation of the initial embedding")] = None,
    pooling: Annotated[str | None, typer.Option(help="max or mean")] = None,
    masked: Annotated[bool | None, typer.Option("--masked/--unmasked", help="leave padding out, or do not")] = None,
    dropout: Annotated[float | None, typer.Option(help="its rate")] = None,
    batch: Annotated[int | None, typer.Option(help="texts of a step")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="after warm-up")] = None,
    warmup: Annotated[int | None, typer.Option(help="steps in which the learning rate grows")] = None,
    clip: Annotated[float | None, typer.Option(help="the largest norm of the gradients")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64")] = None,
) -> None:
    """Train the classifier of film reviews. Exit code 1 if numbers stop being finite, 2 for wrong input."""
    given = {
        "epochs": epochs, "seed": seed, "width": width, "heads": heads, "depth": depth, "vocabulary": vocabulary,
        "longest": longest, "spread": spread, "pooling": pooling, "masked": masked, "dropout": dropout, "batch": batch,
        "learning_rate": learning_rate, "warmup": warmup, "clip": clip, "dtype": dtype,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    chosen = package_named(package)
    with one_line_for_errors():
        train(chosen, data, out, resume, steps, tutorial, given)


def train(
    package: Package,
    folder: Path | None,
    out: Path,
    resume: bool,
    steps: int | None,
    tutorial: bool,
    given: dict[str, Any],
) -> None:
    from training import checkpoints, loop, naive_bayes
    from training.display import Terminal
    from training.reviews import read
    from training.settings import TUTORIAL, Settings

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is no folder")
    if (earlier := checkpoints.newest(out)) and not resume:
        raise ValueError(f"{out} has a run already: go on with --resume, or name another --out")
    split = read(folder)
    if earlier:
        begin = resumed(checkpoints.read(out), given)
        prepared = loop.prepare(split, begin.settings, begin.vocabulary)
        if prepared.digest != begin.data:
            raise ValueError(f"{out} was trained on other texts than these")
    else:
        settings = Settings(**asdict(TUTORIAL if tutorial else Settings()) | given)
        prepared = loop.prepare(split, settings)
        begin = loop.start(prepared, settings, package)
    out.mkdir(parents=True, exist_ok=True)
    entries, training, held_out = prepared.vocabulary.get_vocab_size(), prepared.training, prepared.held_out
    say(f"{len(training.texts)} texts to train on, {len(held_out.texts)} held out, {entries} words, {package.name}")
    baseline = naive_bayes.accuracy(training.texts, training.labels, held_out.texts, held_out.labels, entries)
    say(f"naive Bayes on words: held-out accuracy {baseline:.2%}")
    run = loop.Run(package, prepared, out, begin)
    try:
        with Terminal(console) as display:
            wrote = run.train(display, steps)
    except FloatingPointError as error:
        refuse(str(error), code=1)
    say(f"curves, log and events are in {out}" if wrote else f"{out} has no steps left to take")


def resumed(checkpoint: Any, given: dict[str, Any]) -> Any:
    """The checkpoint, with as many epochs as are asked for; other settings must be its own."""
    for name, value in given.items():
        if name != "epochs" and getattr(checkpoint.settings, name) != value:
            raise ValueError(f"--resume: {name} was {getattr(checkpoint.settings, name)}, and {value} is given")
    return checkpoint._replace(
        settings=replace(checkpoint.settings, epochs=given.get("epochs", checkpoint.settings.epochs))
    )


def say(line: str) -> None:
    console.print(Text(line, style="dim"))


@app.command()
def classify(
    checkpoint: Annotated[Path, typer.Argument(help="of a run, or its folder, whose newest one is taken")],
    text: Annotated[str | None, typer.Argument(help="to classify; without it, every line of standard input")] = None,
    package: Name = DEFAULT,
) -> None:
    """Print the label of a text and its probability. Exit code 2 for wrong input."""
    chosen = package_named(package)
    with one_line_for_errors():
        from training import checkpoints
        from training.classifying import classify as classified

        texts = [line.rstrip("\n") for line in sys.stdin] if text is None else [text]
        if not texts:
            raise ValueError("standard input has no lines")
        for found, line in zip(classified(chosen, checkpoints.read(checkpoint), texts), texts, strict=True):
            print(f"{found.label} {found.probability:.4f}" + (f"  {line}" if text is None else ""))


@app.command()
def lockstep(
    task: Annotated[str, typer.Option(help="translation or reviews, in small")] = "translation",
    steps: Annotated[int, typer.Option(help="how many", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="by which everything random is drawn", min=0)] = 0,
    dtype: Annotated[str, typer.Option(help="float64 or float32")] = "float64",
    only: Annotated[str | None, typer.Option(help="compare this package alone", metavar="PACKAGE")] = None,
    subject: Annotated[str | None, typer.Option(help="compare your own step", metavar="FILE:FUNCTION")] = None,
    out: Annotated[Path, typer.Option(help="for the report", metavar="FOLDER")] = Path("build/training/lockstep"),
) -> None:
    """Compare every step of the same run in all packages. Exit code 1 where one departs, 2 for wrong input."""
    with one_line_for_errors():
        from training.lockstep.command import run

        if not run(task, steps, seed, dtype, only, subject, out):
            raise typer.Exit(1)


if __name__ == "__main__":
    app()
