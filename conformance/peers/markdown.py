"""The divergence matrix as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.checks.levels import LEVELS
from conformance.peers import PEERS
from conformance.peers.models import MODELS
from conformance.peers.rows import (
    CONFORMS,
    MODEL,
    OPERATION_TITLES,
    SIGNS,
    VIOLATED,
    Row,
    Run,
    columns,
    describe_accepted,
    kept_profile,
    legend,
    runs,
    sign,
)
from conformance.reports.markdown import row

RUN, KEEPS = "run", "keeps"
"""The columns of the run that a row is from, and of the highest profile that a path keeps."""
PREFACE = """\
# Where other libraries depart from the definition

Each row is one path through a library. The judge tries it like any function by the rules of [SPEC.md](../SPEC.md), as
far as the path has parameters for them. A violation is a departure from this project's definition. It may agree with
the library's own documentation: a library may intend the mean of the values for an empty row. If one cause violates
several rules, the page shows it once, under the rule of the cause, and the cases of other rules avoid it.

Cases are small, or have [sizes that matter to kernels](declarations.md#sizes) in one or two dimensions. Paths that
compile for every shape, or run in a subprocess, get a third of the large cases. A run at the effort `quick` has none.
If a divergence depends on a size, the page says so: "first wrong at 257 keys (256 are right)". The row of
`jax.numpy.einsum` is not a library's function. It is attention as many people write it, compiled as a whole and
differentiated from outside.

Every rule, or part of one, has a level: `core`, `robust` or `strict`. A row says the highest
[profile](declarations.md#profiles) that the path keeps. The columns stand by level: first whether the level is kept,
then its rules.

`make peers` writes this page, and `divergences.json` beside it, also for the libraries of an extra environment
([packages.txt](../conformance/peers/extra/packages.txt)). A run of some peers renews their rows, and all others stay,
so every row says by a number which run it is from. Compiled FlexAttention compiles for every shape, also in
transformers, and is judged only by its name:
`conformance dev peers "FlexAttention, compiled" flex_attention_forward --seed 2026 --markdown docs/divergences.md`.
[test_divergences.py](../tests/peers/test_divergences.py) shows the most important divergences once more, in plain calls
of the libraries and without the judge.

"""

MODELS_PREFACE = """\
Whole models, judged as [ports](judge-a-model.md) of a dialect: on small random checkpoints of small configs, of which
"config" says what the model cannot have otherwise. A row "as BERT" or "as GPT-2" is no model of the library's, but its
layers put together as that model. A model of another library has its entries by the library's own converter, where
there is one. The first wrong sublayer is found by models in which one sublayer alone does anything."""


def format_page(rows: Sequence[Row]) -> str:
    """The page docs/divergences.md."""
    return PREFACE + "".join(f"{line}\n\n" for line in list_missing_peers(rows)) + format_markdown(rows)


def list_missing_peers(rows: Sequence[Row]) -> Iterator[str]:
    """A line for every reason why peers have no row."""
    judged = {one.path for one in rows}
    lacking = [peer for peer in (*PEERS, *MODELS) if peer.name not in judged]
    gpu = [peer.name for peer in lacking if peer.device == "cuda"]
    others = [peer.name for peer in lacking if peer.device != "cuda"]
    for reason, names in (("Without a row, for want of a GPU", gpu), ("Not judged yet", others)):
        if names:
            yield f"{reason}: {'; '.join(map(escape_markdown, names))}."


def format_markdown(rows: Sequence[Row]) -> str:
    """One table for each operation, and below it every divergence with its smallest case."""
    return "\n".join(lines(rows)) + "\n"


def lines(rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        yield "No peer is installed."
        return
    every = runs(rows)
    yield from (f"{number}. {run.summary}" for number, run in enumerate(every, 1))
    yield ""
    yield f"{legend(rows)}."
    for operation, title in OPERATION_TITLES.items():
        chosen = [one for one in rows if one.operation == operation]
        if chosen:
            yield from ["", f"## {title}", "", *table(chosen, every), *divergences(chosen)]
    models = [one for one in rows if one.operation == MODEL]
    if models:
        yield from ["", "## Models", "", MODELS_PREFACE, "", *models_table(models, every), *divergences(models)]


def models_table(rows: Sequence[Row], numbers: Sequence[Run]) -> Iterator[str]:
    yield row("", RUN, "dialect", "conforms", "first wrong", "config", "not judged")
    yield row("---", ":-:", *["---"] * 5)
    for one in rows:
        steps = ", ".join(dict.fromkeys(found.step for found in one.divergences if found.step))
        conforms = SIGNS[VIOLATED if one.divergences else CONFORMS]
        texts = (steps, one.settings, one.left_out.replace(" is not judged: the function takes none", ""))
        number = numbers.index(one.run) + 1
        yield row(escape_markdown(one.path), str(number), one.dialect, conforms, *map(escape_markdown, texts))


def table(rows: Sequence[Row], numbers: Sequence[Run]) -> Iterator[str]:
    """Rows are peers. Columns are the run, the profile that a peer keeps, and every level with its rules."""
    headings = columns(rows)
    yield row("", RUN, KEEPS, *(f"**{name}**" if name in LEVELS else name for name in headings))
    yield row("---", *[":-:"] * (len(headings) + 2))
    for one in rows:
        number = numbers.index(one.run) + 1
        yield row(escape_markdown(one.path), str(number), kept_profile(one), *(sign(one, name) for name in headings))


def divergences(rows: Sequence[Row]) -> Iterator[str]:
    for one in rows:
        if one.divergences or one.accepted or one.untried:
            yield from ["", f"### {one.path}", ""]
            for rule, title, level, message, call, step in one.divergences:
                of_level = f" ({level})" if level else ""
                where = f", in {step}" if step and step not in message else ""
                yield f"- **{rule}** {title}{of_level}{where}: {escape_markdown(message)}"
                yield from [f"  `{call}`"] if call else []
            if one.accepted:
                yield f"- Takes what should be refused: {describe_accepted(one)}."
            if one.untried:
                yield f"- Not everything was tried: {one.untried}."


def escape_markdown(text: str) -> str:
    """As it stands, where Markdown would read signs into it."""
    for character in "\\|*_<":
        text = text.replace(character, f"\\{character}")
    return text
