"""Helpers of ports: entries of a checkpoint that have more than one place or name."""

from __future__ import annotations

from typing import Any

HEADS = ("lm_head.weight", "embed_out.weight")


def find_head(entries: dict[str, Any], table: str) -> Any:
    """Return the output layer [vocabulary, E]: an entry of its own, or the token table where the two are tied."""
    own = [array for name, array in entries.items() if name.endswith(HEADS)]
    return own[0] if own else entries[table]


def strip_prefix(entries: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries under their names without the prefix."""
    return {name.removeprefix(prefix): array for name, array in entries.items()}


def group_layers(entries: dict[str, Any], stem: str) -> list[dict[str, Any]]:
    """Return one dictionary for each layer, of the entries "<stem>.<index>.<name>" by name."""
    layers: dict[int, dict[str, Any]] = {}
    for name, array in entries.items():
        if name.startswith(stem + "."):
            index, rest = name[len(stem) + 1 :].split(".", 1)
            layers.setdefault(int(index), {})[rest] = array
    return [layers[index] for index in sorted(layers)]
