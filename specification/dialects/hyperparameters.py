"""What a dialect is told beside the checkpoint: known names, and values of the right kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from numbers import Real
from typing import Any

import numpy as np

from specification.checks.arguments import epsilon


def checked(dialect: str, read: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The hyperparameters as plain values. TypeError for names that `read` does not have, or that are lacking.

    What the value of one must be follows from its default: a truth value or a string; `eps` is checked as the norms
    check theirs. All other values are checked where they are used.
    """
    known = {name: p.default for name, p in inspect.signature(read).parameters.items() if p.kind is p.KEYWORD_ONLY}
    takes = f"{dialect} takes {', '.join(known) or 'no hyperparameters'}"
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(f"{takes}, got {', '.join(unknown)}")
    lacking = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in given]
    if lacking:
        raise TypeError(f"{takes}, and needs {', '.join(lacking)}")
    return {name: plain(name, value, known[name]) for name, value in given.items()}


def plain(name: str, value: Any, default: Any) -> Any:
    """The value, a scalar of NumPy's as Python's own."""
    value = value.item() if isinstance(value, np.generic) else value
    if name == "eps":
        if not isinstance(value, Real):
            raise TypeError(f"eps must be a real number, got {value!r}")
        epsilon(value)
    for kind, told in ((bool, "True or False"), (str, "a string")):
        if isinstance(default, kind) and not isinstance(value, kind):
            raise TypeError(f"{name} must be {told}, got {value!r}")
    return value
