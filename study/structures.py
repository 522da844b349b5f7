"""Search and change in structures of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reference_numpy.multi_head_attention import fused as fused_projections
from specification.parameters import Embedding, MultiHeadAttention, rebuild

if TYPE_CHECKING:
    from specification.parameters import ModelParameters


def every(kind: type, value: object) -> list[Any]:
    """Every structure of that kind inside a structure of parameters."""
    if isinstance(value, kind):
        return [value]
    return [found for part in value for found in every(kind, part)] if isinstance(value, list | tuple) else []


def changed(kind: type, value: Any, change: Callable[[Any], Any]) -> Any:
    """The structure with every structure of that kind changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        return rebuild(value, [changed(kind, part, change) for part in value])
    return value


def without_tables(parameters: ModelParameters) -> Any:
    """The parameters without tables of learned positions."""
    return changed(Embedding, parameters, lambda found: found._replace(positions=None))


def fused(parameters: ModelParameters) -> Any:
    """The parameters with the projections of each head made one (MHA-2)."""
    return changed(MultiHeadAttention, parameters, fused_projections)


def per_head(parameters: ModelParameters) -> bool:
    """Whether there is a projection for each head."""
    return any(isinstance(found.query, list) for found in every(MultiHeadAttention, parameters))
