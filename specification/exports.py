"""What a package exports: all that its modules export. Some modules are loaded when a name of theirs is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

LAZY_MODULES = {
    "decoding": ("decode_step", "start"),
    "generation": ("beam_search", "choose", "greedy", "sample"),
    "initializers": ("embedding_default", "linear_default", "xavier_uniform"),
    "models": ("Model", "load", "load_pretrained", "plain_self_attention", "restore", "save"),
    "optimizers": ("adam_start", "adam_step", "clip_by_global_norm", "sgd_start", "sgd_step"),
    "schedules": ("cosine_decay", "inverse_square_root", "linear_warmup"),
}
"""The names of modules that no operation of a model needs, the same in all three implementations. None of them has a
function of its own name: the module would take its place in the package."""


def public_names(namespace: Mapping[str, object]) -> list[str]:
    """Return the names in a package's namespace that are neither private nor those of its modules, in order."""
    return sorted(
        name for name, value in namespace.items() if not (name.startswith("_") or isinstance(value, ModuleType))
    )


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> tuple[list[str], Callable[[str], Any]]:
    """Return the names that some modules of a package export, and the package's `__getattr__`, which loads them."""
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return [*homes], load
