"""Checks on where dropout acts: the structures of `specification.dropout`, before anything is computed."""

from __future__ import annotations

from specification.checks.arguments import refuse, structure
from specification.dropout import DecoderBlockDropout, Dropout, StackDropout, SublayerDropout
from specification.parameters import DecoderBlock

__all__ = ["decoder_sites", "site", "sites"]


def site(name: str, value: object) -> None:
    """Check where dropout acts once, or nowhere."""
    if value is not None:
        structure(name, value, Dropout)


def sites(dropout: object, kind: type, name: str = "dropout") -> None:
    """Check a structure of dropout, and all within it but a stack's blocks, of which each looks at its own."""
    structure(name, dropout, kind)
    for field, default in kind._field_defaults.items():  # type: ignore[attr-defined]
        inner, within = getattr(dropout, field), f"{name}.{field}"
        if default is None:
            site(within, inner)
        elif kind is not StackDropout:
            sites(inner, type(default), within)


def decoder_sites(parameters: DecoderBlock, dropout: DecoderBlockDropout) -> None:
    """Check the dropout of a decoder's block: where it has no cross-attention, nothing is dropped in one."""
    sites(dropout, DecoderBlockDropout)
    if parameters.cross_attention is None and dropout.cross_attention != SublayerDropout():
        refuse("dropout.cross_attention", "be empty without cross-attention among the parameters", "a site")
