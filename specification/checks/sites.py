"""Checks on where dropout acts: the structures of `specification.dropout`, before anything is computed."""

from __future__ import annotations

from typing import Any

from specification.checks.arguments import structure
from specification.dropout import DecoderBlockDropout, Dropout, StackDropout, SublayerDropout

__all__ = ["decoder_sites", "site", "sites"]


def site(name: str, value: Any) -> None:
    if value is not None:
        structure(name, value, Dropout)


def sites(dropout: Any, kind: type, name: str = "dropout") -> None:
    """A structure of that kind, and all within it but a stack's blocks, of which each looks at its own."""
    structure(name, dropout, kind)
    for field, default in kind._field_defaults.items():  # type: ignore[attr-defined]
        inner, within = getattr(dropout, field), f"{name}.{field}"
        if default is None:
            site(within, inner)
        elif kind is not StackDropout:
            sites(inner, type(default), within)


def decoder_sites(parameters: Any, dropout: Any) -> None:
    """Those of a decoder's block; a keep mask for an attention that the parameters do not have is a mistake."""
    sites(dropout, DecoderBlockDropout)
    if parameters.cross_attention is None and dropout.cross_attention != SublayerDropout():
        raise ValueError("dropout.cross_attention was given, and the parameters have no cross-attention")
