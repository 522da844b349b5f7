"""Reverse-mode differentiation of arrays whose entries are balls (`flint.arb`).

A variable holds an object array and remembers from what it was made, with one function for each parent that turns the
gradient of the result into that of the parent. `backward` walks from the results to the leaves. Constants (anything
that is no variable) take part in the arithmetic and receive no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
from flint import arb, arb_mat

ZERO, ONE = arb(0), arb(1)
serial_numbers = count()


def balls(numbers: np.ndarray) -> np.ndarray:
    """An object array of balls that hold exactly the given finite numbers, of any floating dtype."""
    return np.asarray(np.frompyfunc(arb, 1, 1)(np.asarray(numbers).astype(np.float64)), dtype=object)


def zeros(shape: tuple[int, ...]) -> np.ndarray:
    return np.full(shape, ZERO, dtype=object)


class Undecided(ArithmeticError):
    """A ball contains both sides of a decision; more precision separates them."""


class Variable:
    """An array on the tape. `parents` are pairs (variable, function from this one's gradient to its part)."""

    __slots__ = ("gradient", "parents", "serial", "value", "wanted")
    wanted: bool
    # NumPy must leave `array + variable` to the variable.
    __array_ufunc__ = None

    def __init__(
        self, value: np.ndarray | arb | int, parents: Sequence[tuple[Variable, Callable]] = (), *, wanted: bool = False
    ) -> None:
        self.value = np.asarray(value, dtype=object)
        self.parents = [(parent, pullback) for parent, pullback in parents if parent.wanted]
        self.wanted = wanted or bool(self.parents)
        self.gradient: np.ndarray | None = None
        self.serial = next(serial_numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    def __add__(self, other: Variable | np.ndarray | arb | int) -> Variable:
        other = constant(other)
        return Variable(self.value + other.value, [(self, lambda g: g), (other, lambda g: g)])

    def __sub__(self, other: Variable | np.ndarray | arb | int) -> Variable:
        other = constant(other)
        return Variable(self.value - other.value, [(self, lambda g: g), (other, lambda g: -g)])

    def __mul__(self, other: Variable | np.ndarray | arb | int) -> Variable:
        other = constant(other)
        return Variable(
            self.value * other.value, [(self, lambda g: g * other.value), (other, lambda g: g * self.value)]
        )

    def __truediv__(self, other: Variable | np.ndarray | arb | int) -> Variable:
        other = constant(other)
        quotient = np.asarray(self.value / other.value, dtype=object)
        return Variable(quotient, [(self, lambda g: g / other.value), (other, lambda g: -(g * quotient) / other.value)])

    def __matmul__(self, other: Variable) -> Variable:
        return Variable(
            product(self.value, other.value),
            [
                (self, lambda g: product(g, other.value.swapaxes(-1, -2))),
                (other, lambda g: product(self.value.swapaxes(-1, -2), g)),
            ],
        )

    def __getitem__(self, index: Any) -> Variable:
        def scatter(gradient: np.ndarray) -> np.ndarray:
            # An element that was read more than once adds up what each reading received.
            whole = zeros(self.shape)
            np.add.at(whole, index, gradient)
            return whole

        return Variable(self.value[index], [(self, scatter)])

    def reshape(self, *shape: int) -> Variable:
        return Variable(self.value.reshape(shape), [(self, lambda g: g.reshape(self.shape))])

    def transpose(self, *axes: int) -> Variable:
        return Variable(self.value.transpose(axes), [(self, lambda g: g.transpose(np.argsort(axes)))])

    def sum(self, axes: int | tuple[int, ...] | None, keepdims: bool = True) -> Variable:
        def spread(gradient: np.ndarray) -> np.ndarray:
            return np.broadcast_to(gradient if keepdims else np.expand_dims(gradient, axes), self.shape)

        return Variable(add_up(self.value, axes, keepdims), [(self, spread)])

    def accumulate(self, gradient: np.ndarray) -> None:
        """Add to the gradient, summed over whatever broadcasting repeated."""
        gradient = np.asarray(gradient, dtype=object)
        extra = gradient.ndim - self.value.ndim
        repeated = tuple(range(extra)) + tuple(
            extra + axis for axis, size in enumerate(self.shape) if size != gradient.shape[extra + axis]
        )
        if repeated:
            gradient = add_up(gradient, repeated).reshape(self.shape)
        self.gradient = gradient if self.gradient is None else self.gradient + gradient


def constant(array: Variable | np.ndarray | arb | int) -> Variable:
    return array if isinstance(array, Variable) else Variable(array)


def add_up(array: np.ndarray, axes: int | tuple[int, ...] | None, keepdims: bool = True) -> Any:
    """The sum over axes. An empty sum is a ball too, which NumPy would leave an integer."""
    return np.add.reduce(array, axis=axes, keepdims=keepdims, initial=ZERO)


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """left @ right. An empty sum is a ball too, which `np.matmul` leaves an integer."""
    (m, k), n = left.shape[-2:], right.shape[-1]
    if not k:
        return zeros(np.matmul(left, right).shape)
    # flint multiplies matrices ten times as fast, but copies every entry in and out.
    if 2 * m * k * n <= 3 * (m * k + k * n + m * n):
        return np.asarray(np.matmul(left, right), dtype=object)
    if right.ndim == 2 and left.ndim > 2:
        return product(left.reshape(-1, k), right).reshape(*left.shape[:-1], n)
    lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    lefts = np.broadcast_to(left, (*lead, m, k)).reshape(-1, m * k).tolist()
    rights = np.broadcast_to(right, (*lead, k, n)).reshape(-1, k * n).tolist()
    products = [(arb_mat(m, k, a) * arb_mat(k, n, b)).entries() for a, b in zip(lefts, rights, strict=True)]
    return np.array(products, dtype=object).reshape(*lead, m, n)


def elementwise(function: Callable[[arb], arb], slope: Callable[[arb, arb], arb]) -> Callable[[Variable], Variable]:
    """A function of one variable, from itself and from its slope at (x, function(x))."""
    functions: Any = np.frompyfunc(function, 1, 1)
    slopes: Any = np.frompyfunc(slope, 2, 1)

    def apply(x: Variable) -> Variable:
        y = functions(x.value)
        return Variable(y, [(x, lambda g: g * slopes(x.value, y))])

    return apply


# Slopes are written without cancellation: 1 - tanh(x)^2 would lose every digit where tanh saturates.
exp = elementwise(arb.exp, lambda x, y: y)
log = elementwise(arb.log, lambda x, y: 1 / x)
sqrt = elementwise(arb.sqrt, lambda x, y: 1 / (2 * y))
tanh = elementwise(arb.tanh, lambda x, y: x.sech() ** 2)
erfc = elementwise(arb.erfc, lambda x, y: -2 * (-x * x).exp() / arb.pi().sqrt())


def select(condition: np.ndarray, x: Variable, otherwise: arb | np.ndarray | int) -> Variable:
    """x where the condition holds and a constant elsewhere, where x receives an exact 0 and is never multiplied."""
    condition, zero = np.broadcast_to(condition, x.shape), np.asarray(ZERO)
    return Variable(np.where(condition, x.value, np.asarray(otherwise)), [(x, lambda g: np.where(condition, g, zero))])


def concatenate(parts: Sequence[Variable], axis: int) -> Variable:
    ends = np.cumsum([part.shape[axis] for part in parts])

    def piece(end: int, size: int) -> Callable[[np.ndarray], np.ndarray]:
        return lambda g: np.take(g, range(end - size, end), axis)

    parents = [(part, piece(end, part.shape[axis])) for part, end in zip(parts, ends, strict=True)]
    return Variable(np.concatenate([part.value for part in parts], axis), parents)


def backward(cotangents: Sequence[tuple[Variable, np.ndarray]]) -> None:
    """Leave in every variable's `gradient` that of sum(result * cotangent), over all results given."""
    waiting: dict[int, Variable] = {}
    unseen = []
    for result, cotangent in cotangents:
        result.accumulate(cotangent)
        unseen.append(result)
    while unseen:
        variable = unseen.pop()
        if variable.serial not in waiting:
            waiting[variable.serial] = variable
            unseen.extend(parent for parent, _ in variable.parents)
    # A variable is always younger than its parents, so youngest first is an order in which gradients are complete.
    for serial in sorted(waiting, reverse=True):
        variable = waiting[serial]
        if variable.gradient is not None:
            for parent, pullback in variable.parents:
                parent.accumulate(pullback(variable.gradient))


# --- a case's inputs as leaves of the tape ----------------------------------------------------------------------------


class Leaves:
    """The inputs of one evaluation. `read` makes a leaf of one and keeps it, so that its gradient can be asked for."""

    def __init__(self, inputs: dict[str, np.ndarray], wanted: bool):
        self.inputs = inputs
        self.wanted = wanted
        self.variables: dict[str, Variable] = {}

    def __contains__(self, name: str) -> bool:
        return self.inputs.get(name) is not None

    def floating_names(self) -> list[str]:
        """All inputs but ids. (bfloat16 has the kind "V" in some versions.)"""
        return [name for name in self.inputs if name in self and np.asarray(self.inputs[name]).dtype.kind not in "biu"]

    def shape(self, name: str) -> tuple[int, ...]:
        return np.shape(self.inputs[name])

    def read(self, name: str, seen: bool | np.ndarray = True) -> Variable:
        """The input by that name. Entries that nothing sees become an exact 0, whatever they hold (MASK-7).

        `seen` broadcasts to the input. A NaN or infinity that is seen raises ValueError: there is no ball for it.
        """
        numbers = np.asarray(self.inputs[name]).astype(np.float64)
        seen = np.broadcast_to(seen, numbers.shape)
        if not np.isfinite(numbers[seen]).all():
            raise ValueError(f"{name} holds NaN or infinity where it counts; special values have no exact result")
        self.variables[name] = Variable(balls(np.where(seen, numbers, 0.0)), wanted=self.wanted)
        return self.variables[name]
