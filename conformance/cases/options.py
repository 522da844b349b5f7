"""Options: each is written once, and the command line, pytest, Python and all help texts take it from there.

An option is a field of a `TypedDict`: `tile: Annotated[its type, Option(...)]`. A function takes the options as
`**options: Unpack[...]`, and reads them by `read_options`: a string from a command line and a value of Python pass
through the same reader.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, get_type_hints

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Option:
    """What is said of an option beside its name and its type.

    Attributes:
        help: one line for every help text.
        read: returns the value; ValueError says what is wrong with it. None: it is one of `names`, or some of them.
        names: its values, or how they begin. A shell completes them.
        many: it holds several values. On a command line they have commas between them, or it is repeated.
        default: the value where nothing is said; None if that means something of its own.
        switch: the two spellings of a boolean on a command line.
    """

    help: str
    read: Callable[[Any], Any] | None = None
    names: Callable[[], Iterable[str]] = tuple
    many: bool = False
    default: Any = None
    switch: str = ""

    def read_value(self, name: str, given: Any) -> Any:
        if self.read is not None:
            return self.read(given)
        if self.many:
            refuse_mapping(name, given)
            return validate_names(name, given, tuple(self.names()))
        refuse_unknown(name, [given], (True, False) if self.switch else tuple(self.names()))
        return given

    def spellings(self, name: str) -> list[str]:
        """Return how it is written on a command line, without dashes before it: once, or on and off."""
        return (self.switch or name.replace("_", "-")).split("/")


@cache
def options_of(options: type) -> dict[str, Option]:
    """Return the options that are a TypedDict's fields, by name."""
    fields = get_type_hints(options, include_extras=True)
    return {name: field.__metadata__[0] for name, field in fields.items()}


def read_options(options: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None, and defaults, as their options read them.

    Args:
        options: a TypedDict.
        given: values of Python, or strings, by the names of options.

    Raises:
        ValueError: a name or a value is wrong.
    """
    known = options_of(options)
    refuse_unknown("unknown option", given, known)
    said = {name: option.default for name, option in known.items()} | {n: v for n, v in given.items() if v is not None}
    return {name: known[name].read_value(name, value) for name, value in said.items() if value is not None}


def document_options(options: type) -> Callable[[Function], Function]:
    """Return a decorator that names every option in a function's signature and docstring, in place of `**options`."""

    def decorate(function: Function) -> Function:
        known, types = options_of(options), get_type_hints(options)
        set_parameters(function, [(name, types[name], option.default) for name, option in known.items()])
        lines = [f"    {name}: {option.help}" for name, option in known.items()]
        function.__doc__ = "\n".join([inspect.cleandoc(function.__doc__ or ""), "", "Options:", *lines])
        return function

    return decorate


def set_parameters(function: Callable[..., Any], fields: Iterable[tuple[str, Any, Any]]) -> None:
    """Name fields (name, type, default) in a function's signature, in place of `**options`."""
    signature = inspect.signature(function, eval_str=True)
    own, keyword = signature.parameters, inspect.Parameter.KEYWORD_ONLY
    first = [p for p in own.values() if p.kind < keyword]
    last = [p for p in own.values() if p.kind == keyword]
    more = [inspect.Parameter(n, keyword, annotation=kind, default=value) for n, kind, value in fields if n not in own]
    function.__signature__ = signature.replace(parameters=[*first, *more, *last])  # type: ignore[attr-defined]


# --- how values are read ----------------------------------------------------------------------------------------------


def split_items(given: object) -> list[Any]:
    """Items one by one; a string holds one, or several with commas between them, and what is no collection is one."""
    if isinstance(given, str):
        return [item.strip() for item in given.split(",")]
    if not isinstance(given, Iterable):
        return [given]
    return [item for part in given for item in (split_items(part) if isinstance(part, str) else [part])]


def split_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """The same of names; empty ones are left out."""
    return tuple(name for name in split_items(names) if name)


def validate_names(what: str, given: str | Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    """Return the names, as `split_names` reads them; ValueError for one that is not among those expected."""
    chosen = split_names(given)
    refuse_unknown(what, chosen, names)
    return chosen


def refuse_mapping(what: str, given: object) -> None:
    """Its keys alone would say the opposite of {"causal": False}."""
    if isinstance(given, Mapping):
        raise ValueError(f"{what} must be names, got {given!r}")


def refuse_unknown(what: str, given: Iterable[Any], names: Collection[Any]) -> None:
    wrong = [name for name in given if name not in names]
    if wrong:
        near = get_close_matches(str(wrong[0]), list(map(str, names)), 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{what}: got {wrong[0]!r}, expected one of {', '.join(map(str, names))}{meant}")


def read_pairs(what: str, given: Mapping[str, Any] | str | Iterable[str]) -> dict[str, Any]:
    """Return a dictionary of "name=value,name=value"."""
    if isinstance(given, Mapping):
        return dict(given)
    pairs = {}
    for item in split_items(given):
        name, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"{what} must be name=value, got {item!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def whole_number(given: object) -> int:
    """Return a number of at least 0, which may stand in a string; -1 for anything else."""
    if isinstance(given, str) and given.isdecimal():
        return int(given)
    return max(given, -1) if isinstance(given, int) else -1


def whole_numbers(given: object, separator: str) -> tuple[int, ...]:
    """Return the numbers of a sequence, or of a string with separators between them."""
    parts = given.split(separator) if isinstance(given, str) else given if isinstance(given, Iterable) else [given]
    return tuple(map(whole_number, parts))


def read_number(what: str, least: int, given: object) -> int:
    if whole_number(given) < least:
        raise ValueError(f"{what} must be a whole number of at least {least}, got {given!r}")
    return whole_number(given)
