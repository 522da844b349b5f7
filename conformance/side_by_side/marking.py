"""Code in coloured pieces; pieces that differ between the columns are marked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]
from pygments.token import (  # type: ignore[import-untyped]
    Comment,
    Keyword,
    Name,
    Number,
    Operator,
    String,
    Token,
)

from conformance.side_by_side import alignment

KINDS = (
    (Keyword, "keyword"), (Operator.Word, "keyword"), (Name.Builtin, "builtin"), (Name.Function, "function"),
    (Name.Decorator, "decorator"), (Name.Exception, "builtin"), (Number, "number"), (String, "string"),
    (Comment, "comment"),
)  # fmt: skip


class Piece(NamedTuple):
    """A token: its text, how it is coloured ("" for plain), and the columns that have not the same in its place."""

    text: str
    kind: str = ""
    differs: tuple[int, ...] = ()


@cache
def tokens(text: str) -> tuple[Piece, ...]:
    """Pygments' tokens of a piece of Python; their texts joined give the text back."""
    pieces, rest = [], text
    for kind, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        if value:
            pieces.append(Piece(value, kind_of(kind)))
            rest = rest.removeprefix(value)
    return (*pieces, Piece(rest)) if rest else tuple(pieces)


def kind_of(kind: Any) -> str:
    return next((name for parent, name in KINDS if kind in parent), "") if kind is not Token else ""


PUNCTUATION = frozenset("()[]{},.:=")
"""Never marked: it comes with the names around it."""


def counts(piece: Piece) -> bool:
    """Whether a piece is compared: spaces and line breaks are layout."""
    return bool(piece.text.strip())


def mark_differences(texts: Sequence[str | None]) -> list[list[Piece]]:
    """The pieces of every column, marked where another column has nothing the same in its place."""
    columns = [[] if text is None else list(tokens(text)) for text in texts]
    compared = [[piece.text for piece in column if counts(piece)] for column in columns]
    differs: list[list[tuple[int, ...]]] = [[() for _ in column] for column in compared]
    for one in range(len(columns)):
        for other in range(len(columns)):
            if compared[one] != compared[other] and compared[one] and compared[other]:
                same = {i for i, _ in alignment.pairs(compared[one], compared[other], alike_tokens)}
                differs[one] = [was if i in same else (*was, other) for i, was in enumerate(differs[one])]
    return [mark_column(column, marks) for column, marks in zip(columns, differs, strict=True)]


def alike_tokens(one: str, other: str) -> float:
    """Names weigh more than what stands between them."""
    return (0.05 if one in PUNCTUATION else 1.0) if one == other else 0.0


def mark_column(column: list[Piece], differs: list[tuple[int, ...]]) -> list[Piece]:
    left = iter(differs)
    marks = [next(left) if counts(piece) else () for piece in column]
    pairs = zip(column, marks, strict=True)
    return [piece if piece.text in PUNCTUATION else piece._replace(differs=mark) for piece, mark in pairs]
