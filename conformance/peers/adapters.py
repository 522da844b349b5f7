"""What adapters share: attention and norms as functions with the parameters that a path has, and rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any

from conformance.cases.declaration import declare
from conformance.peers.peer import Peer, causal_flag

if TYPE_CHECKING:
    from specification.arrays import Array

Options = dict[str, "str | Callable[[Any], dict[str, Any]]"]
"""By the name of an option here: the library's name for it, or what makes the library's keywords of its value."""


def adapt_attention(
    attend: Callable[..., Any], options: Options, supports: Collection[str] = (), **declared: Any
) -> Callable[..., Any]:
    """Attention with these options, by `attend(query, key, value, **keywords)`; the others are as in `declare`."""
    arrays = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("query", "key", "value")]
    signature = Signature([*arrays, *(Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in options)])

    def attention(*positional: Any, **keywords: Any) -> Any:
        bound = signature.bind(*positional, **keywords)
        bound.apply_defaults()
        given: dict[str, Any] = {}
        for name, theirs in options.items():
            value = bound.arguments[name]
            given |= {theirs: value} if isinstance(theirs, str) else theirs(value)
        return attend(*bound.args, **given)

    declared_attention: Any = declare(supports or None, **declared)(attention)
    declared_attention.__signature__ = signature
    return declared_attention


def read_causal(flag: str) -> Callable[[Any], dict[str, Any]]:
    """The library's flag for a causal mask."""
    return lambda mask: {flag: causal_flag(mask, flag)}


def require_one_axis(weight: Array) -> None:
    """NotImplementedError for a norm over several axes."""
    if weight.ndim > 1:
        raise NotImplementedError(f"the norm is over one axis, not {weight.ndim}")


def adapt_layer_norm(normalize: Callable[..., Any], eps: str, *supports: str, **declared: Any) -> Callable[..., Any]:
    """Layer norm by `normalize(x, weight, bias)`, with eps under the library's name where it is given."""
    theirs = eps

    @declare(supports or None, **declared)
    def layer_norm(x: Array, weight: Array, bias: Array | None = None, *, eps: float | None = None) -> Any:
        if "no-axes" in supports:
            require_one_axis(weight)
        return normalize(x, weight, bias, **({} if eps is None else {theirs: eps}))

    return layer_norm


def adapt_rms_norm(normalize: Callable[..., Any], eps: str, *supports: str, **declared: Any) -> Callable[..., Any]:
    """The same of RMS norm, whose bias is None."""
    layer_norm = adapt_layer_norm(normalize, eps, *supports)

    @declare(supports or None, **declared)
    def rms_norm(x: Array, weight: Array, *, eps: float | None = None) -> Any:
        return layer_norm(x, weight, eps=eps)

    return rms_norm


def make_peer(
    library: str, module: str, arrays: str, packages: tuple[str, ...], path: str, subject: str, operation: str,
    **fields: Any,
) -> Peer:  # fmt: skip
    """A peer of a file that has several: the first four are given once."""
    return Peer(f"{library}{path}", f"{module}:{subject}", operation, arrays, packages, **fields)
