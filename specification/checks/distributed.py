"""Checks on attention and models over several ranks (DIST-1 to DIST-3, DIST-5, DIST-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specification.arrays import Array
from specification.checks.arguments import described, real_number, refuse, shape_of
from specification.checks.shapes import check_array
from specification.configuration import Configuration
from specification.dropout import StackDropout
from specification.parameters import Decoder, Encoder, ImageEmbedding, leaves

__all__ = ["bias_of_ranks", "heads_of_ranks", "model_over_ranks", "plain_numbers", "same_calls"]


def same_calls(calls: Sequence[Mapping[str, Any]]) -> None:
    """Check that the calls of all ranks, by rank, have the same value under every name (DIST-5)."""
    for name, value in calls[0].items():
        for rank, call in enumerate(calls):
            if call[name] != value:
                refuse(name, "be the same on every rank", f"{value} on rank 0 and {call[name]} on rank {rank}")


def plain_numbers(**numbers: object) -> None:
    """Check that options which ranks compare, or loops know, are no arrays (DIST-5)."""
    for name, number in numbers.items():
        if number is not None and real_number(name, number) is None:
            refuse(name, "be a plain number", described(number), TypeError)


def heads_of_ranks(heads: int, ranks: int) -> None:
    """Check that every rank gets as many query heads (DIST-1)."""
    if heads % ranks != 0:
        refuse("query", f"have a multiple of {ranks} heads for as many ranks", f"{heads} heads")


def bias_of_ranks(shapes: Sequence[tuple[int, ...]], queries: Sequence[int], keys: int) -> bool:
    """Check the biases of all ranks, and return whether they are one row for all queries (DIST-2).

    Each has a column for each of all keys, and a row for each query of its rank. Or all have one row, which is for all
    queries unless every rank has one query.
    """
    given = [*map(list, shapes)]
    rows = [shape[-2] if len(shape) in (2, 4) else -1 for shape in shapes]
    one_row = rows != list(queries) and all(count == 1 for count in rows)
    if not one_row and rows != list(queries):
        refuse("bias", f"have {list(queries)} rows on the ranks, or one on each, in rank 2 or 4", given)
    if any(shape[-1] != keys for shape in shapes):
        refuse("bias", f"have {keys} columns, for the keys of all ranks", given)
    return one_row


def model_over_ranks(
    parameters: Encoder | Decoder,
    configuration: Configuration,
    x: Array,
    dropout: StackDropout,
    token_types: Array | None = None,
) -> None:
    """Check that ranks can share the sequence of a model, and that token types and dropout fit this rank's x (DIST-7).

    A rank that refused them later would leave the others waiting.
    """
    if configuration.empty_rows != "zero":
        refuse("empty_rows", "be 'zero' over ranks", configuration.empty_rows)
    if isinstance(parameters.embedding, ImageEmbedding):
        refuse("parameters", "embed tokens or nothing over ranks", "an embedding of images")
    for block in dropout.blocks or ():
        for name, site in block._asdict().items():
            if "attention" in name and site.inner is not None:
                refuse("dropout", "leave the weights of attention over ranks", f"some for {name}")
    B, T = x.shape[:2]
    if token_types is not None:
        check_array("token_types", token_types, "Integer", "B T", B=B, T=T)
    for name, keep in leaves(dropout).items():
        if name.endswith(".keep") and shape_of(name, keep)[:2] != (B, T):
            refuse(f"dropout{name}", f"have shape [{B}, {T}, ...]", [*keep.shape])
