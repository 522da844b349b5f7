"""What `load` is given beside a checkpoint: known names, and values of the right kind."""

from __future__ import annotations

import inspect
from numbers import Real
from typing import Any

import numpy as np

from specification.checks.arguments import epsilon
from specification.loading.record import Dialect, Variant


def checked(dialect: Dialect, given: dict[str, Any]) -> dict[str, Any]:
    """Check the hyperparameters of a dialect, and return all of them as plain values, with defaults for the others.

    What the value of one must be follows from its default: a truth value or a string; `eps` is checked as the norms
    check theirs. All other values are checked where they are used.

    TypeError for names that the dialect lacks, for those that it needs and were not given, and for other kinds of
    values; ValueError for an eps that no norm takes.
    """
    known = dialect.hyperparameters
    takes = f"{dialect.name} takes {', '.join(known) or 'no hyperparameters'}"
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TypeError(f"{takes}, got {', '.join(unknown)}")
    lacking = [name for name, default in known.items() if default is inspect.Parameter.empty and name not in given]
    if lacking:
        raise TypeError(f"{takes}, and needs {', '.join(lacking)}")
    return known | {name: plain(name, value, known[name]) for name, value in given.items()}


def of_variant(dialect: Dialect, variant: Variant, given: dict[str, Any]) -> dict[str, Any]:
    """Select the hyperparameters that one variant takes, out of what `checked` returned.

    TypeError for values that it does not take, or needs.
    """
    known, optional = variant.hyperparameters, dialect.hyperparameters
    surplus = [name for name, value in given.items() if name not in known and value not in (None, optional[name])]
    if surplus:
        raise TypeError(f"a {dialect.name} checkpoint of {variant.name} takes no {', '.join(surplus)}")
    lacking = [name for name, value in known.items() if value is inspect.Parameter.empty is not optional[name]]
    lacking = [name for name in lacking if given[name] is None]
    if lacking:
        raise TypeError(f"{dialect.name} needs {', '.join(lacking)}")
    return {name: given[name] for name in known}


def plain(name: str, value: object, default: object) -> Any:
    """Check one value, which is of the default's kind if that is a truth value or a string; return it as Python's."""
    value = value.item() if isinstance(value, np.generic) else value
    if name == "eps":
        if not isinstance(value, Real):
            raise TypeError(f"eps must be a real number, got {value!r}")
        epsilon(value)
    for kind, told in ((bool, "True or False"), (str, "a string")):
        if isinstance(default, kind) and not isinstance(value, kind):
            raise TypeError(f"{name} must be {told}, got {value!r}")
    return value
