"""Checks on arrays, by the shapes that annotations declare.

A check annotates its arrays as the three packages do: `query: Float[Array, "B H Q D"]`. A letter stands for one size
wherever it occurs in a call:

    B H     these axes, in this order
    #B      an axis of size B or 1
    *N ...  any number of axes, before the others

Of the kinds of arrays, `Float` are all in one dtype, and `Wide` in that one or the one in which it is computed.
`Integer` and `Bool` speak for themselves, `Shaped` is of any dtype. `Projection[Linear, "I O"]` is a `Linear` with a
weight [I, O], and a bias [O] or None. `|` stands between shapes of which one must fit, or before None.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Integer
from typing import Annotated as Projection
from typing import Annotated as Wide
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from specification.checks.arguments import companion_dtype, dtype_of, refuse, shape_of, structure
from specification.dtypes import dtype_name
from specification.parameters import Linear

__all__ = [
    "Bool", "Float", "Integer", "Projection", "Wide",
    "arrays_of", "check_array", "check_shapes", "declare", "match", "match_each",
]  # fmt: skip

P = ParamSpec("P")
Result = TypeVar("Result")


class Shape(NamedTuple):
    """Axes as (letter, whether it may have size 1 instead); `open` where any number of axes stand before the others."""

    axes: tuple[tuple[str, bool], ...]
    open: bool


class Argument(NamedTuple):
    """An array as it is declared: one of the shapes must fit."""

    name: str
    kind: str
    shapes: tuple[Shape, ...]
    optional: bool


Declaration = tuple[Argument, ...]

ARRAY = re.compile(r"(Float|Wide|Integer|Bool|Shaped|Projection)\[(?:Array|Linear), ['\"](.*?)['\"]\]")
PADDING = "; for a [batch, keys] padding mask use KeyPadding, for one length a sequence use KeyLengths"


def declare(annotations: Mapping[str, str]) -> Declaration:
    """Read the declarations of arrays out of annotations, and leave out all others."""
    arguments = []
    for name, annotation in annotations.items():
        found = ARRAY.findall(annotation)
        if found and found[0][0] == "Projection":
            axes = found[0][1]
            arguments.append(Argument(f"{name}.weight", "Float", (read_shape(axes),), optional=False))
            arguments.append(Argument(f"{name}.bias", "Float", (read_shape(axes.split()[-1]),), optional=True))
        elif found:
            shapes = tuple(read_shape(axes) for _, axes in found)
            arguments.append(Argument(name, found[0][0], shapes, optional=annotation.endswith("| None")))
    return tuple(arguments)


def read_shape(text: str) -> Shape:
    """Read a shape such as "#B T" or "... E"."""
    axes = tuple((axis.lstrip("#"), axis.startswith("#")) for axis in text.split())
    return Shape(axes, text.startswith(("*", "...")))


PAIRS = (read_shape("Q K"), read_shape("#B #H Q K"))


def check_shapes(check: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a check, so that it first matches the arrays that its annotations declare."""
    declaration, names = declare(check.__annotations__), tuple(inspect.signature(check).parameters)
    projections = [name for name, annotation in check.__annotations__.items() if annotation.startswith("Projection")]

    @wraps(check)
    def check_arrays_first(*arguments: Any, **values: Any) -> Any:
        values |= zip(names, arguments)  # noqa: B905 - the others are in `values`, or left out
        arrays = values
        for name in projections:
            arrays = arrays | arrays_of(name, values[name])
        match(declaration, arrays)
        return check(**values)  # type: ignore[call-arg]

    return check_arrays_first


def arrays_of(name: str, projection: Linear) -> dict[str, Any]:
    """Return the arrays of a projection by their names."""
    structure(name, projection, Linear)
    return {f"{name}.weight": projection.weight, f"{name}.bias": projection.bias}


def check_array(name: str, array: object, kind: str, *shapes: str, **sizes: Any) -> dict[str, Any]:
    """Check one array, as `match` does."""
    return match((Argument(name, kind, tuple(map(read_shape, shapes)), False),), {name: array}, **sizes)


def match_each(form: str, declaration: Declaration, rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Check rows of arrays as declared, of the same sizes; `form` makes a name of the declared one and the row."""
    arguments, values = [], {}
    for i, row in enumerate(rows):
        for argument, array in zip(declaration, row, strict=True):
            name = form.format(argument.name, i)
            arguments.append(argument._replace(name=name))
            values[name] = array
    return match(tuple(arguments), values)


def match(
    declaration: Declaration, values: Mapping[str, Any], *, prefix: str = "", advice: str = "", **sizes: int | None
) -> dict[str, Any]:
    """Check arrays, by name, against their declarations, in order, and return the size of every letter.

    values may hold others too. prefix: of names in messages. advice: for whoever gives an array of another kind.
    sizes: of letters that are known before; None is not.
    """
    known = {letter: size for letter, size in sizes.items() if size is not None} if sizes else {}
    main: Any = None
    for argument in declaration:
        name, kind, shapes, optional = argument
        array: Any = values.get(name)
        if array is None and optional:
            continue
        name = prefix + name if prefix else name
        sizes_of_array = shape_of(name, array)
        if main is None and kind == "Float":
            main, main_name, main_dtype = array.dtype, name, dtype_of(name, array, kind)
        elif kind in ("Float", "Wide"):
            if array.dtype is main:  # the common case: names take longer
                pass
            elif kind == "Wide":
                companion_dtype(name, array, main_dtype)
            elif dtype_name(array) != main_dtype:
                refuse(name, f"be {main_dtype} like {main_name}", dtype_name(array), TypeError)
        elif kind != "Shaped":
            dtype_of(name, array, kind, advice)
        for shape in shapes:
            if fits(sizes_of_array, shape, known):
                break
        else:
            refuse_shape(argument, declaration, values, prefix, sizes)
    return known


def fits(sizes: tuple[Any, ...], shape: Shape, known: dict[str, Any]) -> bool:
    """Tell whether an array of these sizes has this shape, and note the sizes of letters that are new."""
    axes, is_open = shape
    if is_open:
        before = len(sizes) - len(axes) + 1
        sizes = (sizes[:before], *sizes[before:])
    if len(sizes) != len(axes):
        return False
    for (letter, broadcast), size in zip(axes, sizes):  # noqa: B905 - `strict` would cost as much again
        if not (broadcast and size == 1) and known.setdefault(letter, size) != size:
            return False
    return True


def refuse_shape(
    argument: Argument, declaration: Declaration, values: Mapping[str, Any], prefix: str, sizes: Mapping[str, Any]
) -> NoReturn:
    """Name the shape that an array must have, and the arrays before it that say so."""
    before = declaration[: declaration.index(argument)]
    known = match(before, values, **sizes)
    letters = {letter for shape in argument.shapes for letter, _ in shape.axes if letter in known} - {*sizes}
    sources = []
    for name, _, shapes, _ in before:
        own = {letter for shape in shapes for letter, _ in shape.axes}
        if values.get(name) is not None and own & letters:
            sources.append(f"{prefix}{name} {list(values[name].shape)}")
            letters -= own
    expected = " or ".join(write_shape(shape, known) for shape in argument.shapes)
    beside = f" beside {' and '.join(sources)}" if sources else ""
    advice = PADDING if argument.shapes == PAIRS else ""
    refuse(prefix + argument.name, f"have shape {expected}{beside}", f"{list(values[argument.name].shape)}{advice}")


def write_shape(shape: Shape, known: Mapping[str, Any]) -> str:
    """Write a shape with the sizes that are known."""
    parts: list[Any] = []
    for letter, broadcast in shape.axes:
        if letter[0] in "*.":
            parts += known.get(letter, ["..."])
        else:
            parts.append(f"{known.get(letter, letter)}{' or 1' if broadcast else ''}")
    return f"[{', '.join(map(str, parts))}]"
