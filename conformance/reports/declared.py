"""What a target that was judged says of itself, without loading it again."""

from __future__ import annotations

import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

from conformance.declaration import EVERYTHING, Declaration, declaration_of
from conformance.subjects import IMPLEMENTATIONS
from conformance.targets import Target


def declared(target: Target) -> Declaration | None:
    """None where its function is no longer to be found."""
    if isinstance(target.subject, str) and target.subject in IMPLEMENTATIONS:
        return EVERYTHING
    function = loaded(target.subject) if isinstance(target.subject, str) else target.subject
    return None if function is None else declaration_of(function, target.arrays != "numpy", **target.given)


def loaded(name: str) -> Any:
    """The function of that name in a module that is loaded; a file is loaded as a module of its own name."""
    where, _, attribute = name.rpartition(":")
    module = sys.modules.get(Path(where).stem if where.endswith(".py") else where)
    if where.endswith(".py") and Path(getattr(module, "__file__", None) or "").resolve() != Path(where).resolve():
        return None
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        return None
