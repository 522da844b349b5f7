"""`python -m training`: train on reviews, classify texts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.text import Text

from conformance.cases.options import Function, set_parameters
from conformance.cli.console import console, errors, exit_interrupted, refuse
from conformance.runner.compiled_code import keep_compiled_code
from training.packages import PACKAGES, Package
from training.settings import Settings
from training.translation.settings import Settings as TranslationSettings

app = typer.Typer(add_completion=False, help="The same training run in all three packages.", no_args_is_help=True)

NAMES = f"one of {', '.join(PACKAGES)}"
Name = Annotated[str, typer.Option("--package", help=NAMES, metavar="NAME")]
THAT_OF_THE_RUN = f"{NAMES}; the first, or that of the run that goes on"
Trained = Annotated[str | None, typer.Option("--package", help=THAT_OF_THE_RUN, metavar="NAME")]
Checkpoint = Annotated[Path, typer.Argument(help="of a run, or its folder, whose newest one is taken")]
Out = Annotated[Path, typer.Option(help="for logs and checkpoints", metavar="FOLDER")]
Resume = Annotated[bool, typer.Option("--resume", help="go on from the newest checkpoint of --out")]
Steps = Annotated[int | None, typer.Option(help="end after so many steps in all", min=1)]
DATA = "a folder like aclImdb, with train/pos/*.txt and so on; else movie sentences"
ATTENTION = "draw what the decoder looks at; .png, .svg or .pdf"
DEFAULT = next(iter(PACKAGES))
Ranks = Annotated[int, typer.Option(help="processes of PyTorch or devices of JAX that share every batch", min=1)]


def take_settings(settings: type) -> Callable[[Function], Function]:
    """Return a decorator that gives a command an option for each setting, in place of `**given`; None: not given."""

    def decorate(command: Function) -> Function:
        kinds, options = get_type_hints(settings), []
        for one in fields(settings):
            name, said = f"--{one.name.replace('_', '-')}", one.metadata
            spelling = f"{name}/--un{one.name}" if kinds[one.name] is bool else name
            option = typer.Option(spelling, help=said["help"], show_default=str(said["shown"]))
            options.append((one.name, Annotated[kinds[one.name] | None, option], None))
        set_parameters(command, options)
        return command

    return decorate


def package_named(name: str) -> Package:
    if name not in PACKAGES:
        refuse(f"--package must be {NAMES}, got {name!r}")
    keep_compiled_code()
    return PACKAGES[name]


def package_of(name: str | None, out: Path, resume: bool, ranks: int) -> Package:
    """The package of that name, on ranks if several; without a name, that in which the run began that goes on."""
    from training import checkpoints

    console.quiet = errors.quiet = ranks > 1 and os.environ.get("RANK", "0") != "0"
    earlier = checkpoints.newest(out) if resume else None
    began = None if earlier is None else checkpoints.told_by(earlier / checkpoints.RUN)["package"]
    if name is not None and began not in (None, name):
        say(f"the run began in {began}, and goes on in {name}")
    chosen = package_named((began or DEFAULT) if name is None else name)
    if ranks == 1:
        return chosen
    from training.ranks import package_on_ranks

    return package_on_ranks(chosen.name, ranks)


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
@take_settings(Settings)
def reviews(
    package: Trained = None,
    data: Annotated[Path | None, typer.Option(help=DATA, metavar="FOLDER")] = None,
    out: Out = Path("build/training/reviews"),
    resume: Resume = False,
    steps: Steps = None,
    ranks: Ranks = 1,
    tutorial: Annotated[bool, typer.Option("--tutorial", help="the tutorial's settings in place of ours")] = False,
    **given: Any,
) -> None:
    """Train the classifier of film reviews. Exit code 1 if numbers stop being finite, 2 for wrong input."""
    given = {name: value for name, value in given.items() if value is not None}
    with one_line_for_errors():
        from training import checkpoints, naive_bayes, review_data
        from training.reviews import read
        from training.settings import TUTORIAL

        chosen = package_of(package, out, resume, ranks)
        if tutorial:
            given = asdict(TUTORIAL) | given
        split, base = read(data), Settings(**given)
        if "decay" not in given:
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
        begin = checkpoints.read(out, kind)
        for name, value in given.items():
            own = getattr(begin.settings, name)
            # Where the learning rate falls to 0 with the last step, the epochs must, too.
            may_change = name == "epochs" and not getattr(begin.settings, "decay", 0)
            if not may_change and own != value:
                raise ValueError(f"--resume: {name} was {own}, and {value} is given")
        begin = begin._replace(settings=replace(begin.settings, **given))
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
        if package.rank > 0:
            return run.follow_steps(steps)
        with Terminal(console) as display:
            wrote = run.train(display, steps)
    except FloatingPointError as error:
        refuse(str(error), code=1)
    say(f"curves, log and events are in {out}" if wrote else f"{out} has no steps left to take")


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
    checkpoint: Checkpoint,
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
@take_settings(TranslationSettings)
def translation(
    package: Trained = None,
    out: Out = Path("build/training/translation"),
    resume: Resume = False,
    steps: Steps = None,
    ranks: Ranks = 1,
    **given: Any,
) -> None:
    """Train the translator of numbers in words. Exit code 1 if numbers stop being finite, 2 for wrong input."""
    given = {name: value for name, value in given.items() if value is not None}
    with one_line_for_errors():
        from training.translation.data import TRANSLATION, prepare

        chosen = package_of(package, out, resume, ranks)

        def prepared(settings: Any, vocabulary: Any) -> Any:
            data = prepare(settings)
            say(f"{data.size} numbers to train on, {len(data.held_out)} held out, {chosen.name}")
            return data

        train(chosen, out, resume, steps, given, TRANSLATION, TranslationSettings(), prepared)


@app.command()
def translate(
    checkpoint: Checkpoint,
    text: Annotated[str | None, typer.Argument(help="to translate; without it, every line of standard input")] = None,
    package: Name = DEFAULT,
    beams: Annotated[int, typer.Option(help="translations that are searched at a time", min=1)] = 1,
    attention: Annotated[Path | None, typer.Option(help=ATTENTION, metavar="FILE")] = None,
) -> None:
    """Print the translation of a text. Exit code 2 for wrong input; of several lines, the others are translated."""
    chosen = package_named(package)
    with one_line_for_errors():
        from training import checkpoints
        from training.translation import translating
        from training.translation.data import TRANSLATION

        texts = given_texts(text)
        found = checkpoints.read(checkpoint, TRANSLATION)
        wrong = {}
        for number, line in enumerate(texts if text is None else []):
            try:
                found.vocabulary.source.encode(line)
            except ValueError as error:
                wrong[number] = str(error)
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
