"""`python -m training`: train on reviews, classify texts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from conformance.cli.console import console, exit_interrupted, refuse
from conformance.runner.compiled_code import keep_compiled_code
from training.packages import PACKAGES, Package
from training.settings import Settings

app = typer.Typer(add_completion=False, help="The same training run in all three packages.", no_args_is_help=True)

Name = Annotated[str, typer.Option("--package", help=f"one of {', '.join(PACKAGES)}", metavar="NAME")]
Trained = Annotated[
    str | None,
    typer.Option(
        "--package", help=f"one of {', '.join(PACKAGES)}; the first, or that of the run that goes on", metavar="NAME"
    ),
]
Out = Annotated[Path, typer.Option(help="for logs and checkpoints", metavar="FOLDER")]
Resume = Annotated[bool, typer.Option("--resume", help="go on from the newest checkpoint of --out")]
Steps = Annotated[int | None, typer.Option(help="end after so many steps in all", min=1)]
DEFAULT = next(iter(PACKAGES))


def shown(default: Any, what: str) -> Any:
    """The option of a setting, with its default."""
    return typer.Option(help=what, show_default=str(default))


def package_named(name: str | None) -> Package:
    """The package of that name, or the default one."""
    name = DEFAULT if name is None else name
    if name not in PACKAGES:
        refuse(f"--package must be one of {', '.join(PACKAGES)}, got {name!r}")
    keep_compiled_code()
    return PACKAGES[name]


def package_of(name: str | None, out: Path, resume: bool) -> Package:
    """The package of that name; without one, that in which the run began that goes on."""
    from training import checkpoints

    earlier = checkpoints.newest(out) if resume else None
    began = None if earlier is None else checkpoints.told_by(earlier / checkpoints.RUN)["package"]
    if name is not None and began not in (None, name):
        say(f"the run began in {began}, and goes on in {name}")
    return package_named(began if name is None else name)


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
        exit_interrupted()


@app.command()
def reviews(
    package: Trained = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="a folder like aclImdb, with train/pos/*.txt and so on; else movie sentences", metavar="FOLDER"
        ),
    ] = None,
    out: Out = Path("build/training/reviews"),
    resume: Resume = False,
    steps: Steps = None,
    tutorial: Annotated[bool, typer.Option("--tutorial", help="the tutorial's settings in place of ours")] = False,
    epochs: Annotated[int | None, shown(Settings.epochs, "how often all texts are read")] = None,
    seed: Annotated[int | None, shown(Settings.seed, "by which everything random is drawn")] = None,
    width: Annotated[int | None, shown(Settings.width, "of the model")] = None,
    heads: Annotated[int | None, shown(Settings.heads, "of attention")] = None,
    depth: Annotated[int | None, shown(Settings.depth, "blocks")] = None,
    vocabulary: Annotated[int | None, shown(Settings.vocabulary, "its largest size")] = None,
    longest: Annotated[int | None, shown(Settings.longest, "words after which a text is cut")] = None,
    spread: Annotated[float | None, shown(Settings.spread, "deviation of the initial embedding")] = None,
    pooling: Annotated[str | None, shown(Settings.pooling, "max or mean")] = None,
    masked: Annotated[
        bool | None,
        typer.Option("--masked/--unmasked", help="leave padding out, or do not", show_default="masked"),
    ] = None,
    dropout: Annotated[float | None, shown(Settings.dropout, "its rate")] = None,
    batch: Annotated[int | None, shown(Settings.batch, "texts of a step")] = None,
    learning_rate: Annotated[float | None, shown(Settings.learning_rate, "after warm-up")] = None,
    warmup: Annotated[int | None, shown(Settings.warmup, "steps in which the learning rate grows")] = None,
    decay: Annotated[
        int | None, typer.Option(help="steps in which it falls to 0; 0: it stays; else all of them")
    ] = None,
    clip: Annotated[float | None, shown(Settings.clip, "the largest norm of the gradients")] = None,
    dtype: Annotated[str | None, shown(Settings.dtype, "float32 or float64")] = None,
) -> None:
    """Train the classifier of film reviews. Exit code 1 if numbers stop being finite, 2 for wrong input."""
    given: dict[str, Any] = {
        "epochs": epochs, "seed": seed, "width": width, "heads": heads, "depth": depth, "vocabulary": vocabulary,
        "longest": longest, "spread": spread, "pooling": pooling, "masked": masked, "dropout": dropout, "batch": batch,
        "learning_rate": learning_rate, "warmup": warmup, "decay": decay, "clip": clip, "dtype": dtype,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    with one_line_for_errors():
        from training import checkpoints, naive_bayes, review_data
        from training.reviews import read
        from training.settings import TUTORIAL

        chosen = package_of(package, out, resume)
        if tutorial:
            given = asdict(TUTORIAL) | given
        split, base = read(data), Settings(**given)
        if decay is None and not tutorial:
            base = replace(base, decay=base.epochs * -(-len(split.training.texts) // base.batch))

        def prepare(settings: Any, vocabulary: Any) -> Any:
            prepared = review_data.prepare(split, settings, vocabulary)
            entries, training, held_out = prepared.vocabulary.get_vocab_size(), prepared.training, prepared.held_out
            counts = f"{len(training.texts)} texts to train on, {len(held_out.texts)} held out, {entries} words"
            say(f"{counts}, {chosen.name}")
            baseline = naive_bayes.accuracy(training.texts, training.labels, held_out.texts, held_out.labels, entries)
            say(f"naive Bayes on words: held-out accuracy {baseline:.2%}")
            return prepared

        train(chosen, out, resume, steps, given, checkpoints.REVIEWS, base, prepare)


def train(
    package: Package,
    out: Path,
    resume: bool,
    steps: int | None,
    given: dict[str, Any],
    kind: Any,
    base: Any,
    prepare: Callable[[Any, Any], Any],
) -> None:
    """Begin a run, or go on with one. base: settings where none are given. prepare: data of settings and vocabulary."""
    from training import checkpoints, loop
    from training.display import Terminal

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out: {out} is no folder")
    if (out / checkpoints.RUN).exists():
        raise ValueError(f"--out: {out} is a checkpoint; the folder of its run is {out.parent}")
    if (earlier := checkpoints.newest(out)) and not resume:
        raise ValueError(f"{out} has a run already: go on with --resume, or name another --out")
    if earlier:
        begin = resumed(checkpoints.read(out, kind), given)
        data = prepare(begin.settings, begin.vocabulary)
        if data.digest != begin.data:
            raise ValueError(f"{out} was trained on other texts than these")
    else:
        if resume:
            say(f"{out} has no checkpoint: the run begins")
        settings = kind.settings(**asdict(base) | given)
        data = prepare(settings, None)
        begin = loop.start(data, settings, package)
    out.mkdir(parents=True, exist_ok=True)
    run = loop.Run(package, data, out, begin)
    try:
        with Terminal(console) as display:
            wrote = run.train(display, steps)
    except FloatingPointError as error:
        refuse(str(error), code=1)
    say(f"curves, log and events are in {out}" if wrote else f"{out} has no steps left to take")


def resumed(checkpoint: Any, given: dict[str, Any]) -> Any:
    """The checkpoint, with as many epochs as are asked for; other settings must be its own.

    Where the learning rate falls to 0 with the last step, the epochs must, too.
    """
    for name, value in given.items():
        may_change = name == "epochs" and not getattr(checkpoint.settings, "decay", 0)
        if not may_change and getattr(checkpoint.settings, name) != value:
            raise ValueError(f"--resume: {name} was {getattr(checkpoint.settings, name)}, and {value} is given")
    return checkpoint._replace(
        settings=replace(checkpoint.settings, epochs=given.get("epochs", checkpoint.settings.epochs))
    )


def given_texts(text: str | None) -> list[str]:
    """The text alone, or without one every line of standard input."""
    texts = [line.rstrip("\n") for line in sys.stdin] if text is None else [text]
    if not texts:
        raise ValueError("standard input has no lines")
    return texts


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

        texts = given_texts(text)
        for found, line in zip(classified(chosen, checkpoints.read(checkpoint), texts), texts, strict=True):
            print(f"{found.label} {found.probability:.4f}" + (f"  {line}" if text is None else ""))


@app.command()
def benchmark(
    package: Annotated[
        list[str] | None, typer.Option(help="the ports unless named; may be repeated", metavar="NAME")
    ] = None,
    repeats: Annotated[int, typer.Option(help="rounds, of which the least time counts", min=1)] = 20,
    words: Annotated[int, typer.Option(help="of every text", min=1, max=256)] = 256,
    vocabulary: Annotated[int, typer.Option(help="its size", min=3)] = 50_000,
) -> None:
    """Time a step at the tutorial's sizes, beside the tutorial's own loop. Exit code 2 for wrong input."""
    names = package or list(PACKAGES)[:2]
    for name in names:
        package_named(name)
    with one_line_for_errors():
        from training.benchmark import measure
        from training.settings import TUTORIAL

        found = measure(replace(TUTORIAL, vocabulary=vocabulary), names, repeats, words)
        for one in found:
            ratio = one.wall / found[0].wall
            print(f"{one.name:20} {1e3 * one.wall:8.1f} ms  {1e3 * one.processor:8.1f} ms of processors  {ratio:5.2f}")


@app.command()
def translation(
    package: Trained = None,
    out: Out = Path("build/training/translation"),
    resume: Resume = False,
    steps: Steps = None,
    source: Annotated[str | None, typer.Option(help="language, as num2words names it")] = None,
    target: Annotated[str | None, typer.Option(help="language that is translated into")] = None,
    numbers: Annotated[int | None, typer.Option(help="how many are trained on")] = None,
    held_out: Annotated[int | None, typer.Option(help="how many are translated after every epoch")] = None,
    repeats: Annotated[int | None, typer.Option(help="how often an epoch has numbers below 100")] = None,
    limit: Annotated[int | None, typer.Option(help="numbers are smaller")] = None,
    epochs: Annotated[int | None, typer.Option(help="how often all numbers are read")] = None,
    seed: Annotated[int | None, typer.Option(help="by which everything random is drawn")] = None,
    width: Annotated[int | None, typer.Option(help="of the model")] = None,
    inner: Annotated[int | None, typer.Option(help="of the feed-forward network")] = None,
    heads: Annotated[int | None, typer.Option(help="of attention")] = None,
    depth: Annotated[int | None, typer.Option(help="blocks of the encoder, and of the decoder")] = None,
    dropout: Annotated[float | None, typer.Option(help="its rate")] = None,
    label_smoothing: Annotated[float | None, typer.Option(help="shared by all tokens")] = None,
    batch: Annotated[int | None, typer.Option(help="numbers of a step")] = None,
    warmup: Annotated[int | None, typer.Option(help="steps in which the learning rate grows")] = None,
    clip: Annotated[float | None, typer.Option(help="the largest norm of the gradients")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64")] = None,
) -> None:
    """Train the translator of numbers in words. Exit code 1 if numbers stop being finite, 2 for wrong input."""
    given = {
        "source": source, "target": target, "numbers": numbers, "held_out": held_out,
        "repeats": repeats, "limit": limit, "epochs": epochs, "seed": seed,
        "width": width, "inner": inner, "heads": heads, "depth": depth, "dropout": dropout,
        "label_smoothing": label_smoothing, "batch": batch, "warmup": warmup, "clip": clip, "dtype": dtype,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    with one_line_for_errors():
        from training.translation.data import TRANSLATION, prepare
        from training.translation.settings import Settings as Translation

        chosen = package_of(package, out, resume)

        def prepared(settings: Any, vocabulary: Any) -> Any:
            data = prepare(settings)
            say(f"{data.size} numbers to train on, {len(data.held_out)} held out, {chosen.name}")
            return data

        train(chosen, out, resume, steps, given, TRANSLATION, Translation(), prepared)


@app.command()
def translate(
    checkpoint: Annotated[Path, typer.Argument(help="of a run, or its folder, whose newest one is taken")],
    text: Annotated[str | None, typer.Argument(help="to translate; without it, every line of standard input")] = None,
    package: Name = DEFAULT,
    beams: Annotated[int, typer.Option(help="translations that are searched at a time", min=1)] = 1,
    attention: Annotated[
        Path | None, typer.Option(help="draw what the decoder looks at; .png, .svg or .pdf", metavar="FILE")
    ] = None,
) -> None:
    """Print the translation of a text. Exit code 2 for wrong input; of several lines, the others are translated."""
    chosen = package_named(package)
    with one_line_for_errors():
        from training import checkpoints
        from training.translation import translating
        from training.translation.data import TRANSLATION

        texts = given_texts(text)
        found = checkpoints.read(checkpoint, TRANSLATION)
        wrong = {} if text is not None else translating.refused(found, texts)
        taken = [line for number, line in enumerate(texts) if number not in wrong]
        translations = translating.from_checkpoint(chosen, found, taken, beams)
        following = iter(translations)
        for number in range(len(texts)):
            print("" if number in wrong else next(following))
        if attention is not None and taken:
            translating.draw(found, taken[0], translations[0], attention)
        if wrong:
            refuse("\n".join(f"line {number + 1}: {why}" for number, why in wrong.items()))


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
