"""What a mistake of a port is, and the scopes that it may have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.ports.computation import Computation, Step
from specification.parameters import Decoder, Encoder

Scope = tuple[str, ...]
"""The beginnings of the names of the steps where a mistake is made; empty for everywhere."""
StepChange = Callable[[Step], Step]


@dataclass(frozen=True)
class ModelMistake:
    """One mistake in one scope.

    Attributes:
        id: `topic.words-with-hyphens`; never changes.
        rule: the rule of the specification that it breaks.
        says: the mistake in one sentence, without its scope.
        change: makes the computation of a port with the mistake.
        scope: where it is made.
        filling: what rows without keys get in all attentions of such a port, of `Configuration.empty_rows`, which is no
            mistake by itself. Empty for what the model has.
    """

    id: str
    rule: str
    says: str
    change: Callable[[Computation], Computation]
    scope: Scope = ()
    filling: str = ""

    def fill(self, computation: Computation) -> Computation:
        """Return the right computation of a port that gives rows without keys the same."""
        if not self.filling:
            return computation
        return computation.change(configuration=replace(computation.configuration, empty_rows=self.filling))

    def apply(self, computation: Computation) -> Computation:
        return self.change(self.fill(computation))


@dataclass(frozen=True)
class StepMistake:
    """A mistake of single steps of some kinds, which any scope may have.

    filling: as in `ModelMistake`; what other rows get may depend on it.
    """

    id: str
    rule: str
    says: str
    change: StepChange
    kinds: tuple[str, ...]
    filling: str = ""

    def limit_to(self, scope: Scope) -> ModelMistake:
        """Return the mistake in a scope."""

        def rewrite(step: Step) -> Step:
            reached = step.kind in self.kinds and (not scope or step.name.startswith(scope))
            return self.change(step) if reached else step

        def change(computation: Computation) -> Computation:
            return computation.rewrite(rewrite)

        return ModelMistake(self.id, self.rule, self.says, change, scope, self.filling)


TRANSPOSED = "read transposed, or reshaped instead"


def read_transposed(weight: np.ndarray) -> np.ndarray:
    """A weight of a library that has its axes the other way round, in memory as it is there."""
    return weight.T.reshape(weight.shape)


@dataclass(frozen=True)
class Topic:
    """What mistakes have in common: the first word of their ids, their usual rule, and the kinds of steps."""

    name: str
    rule: str
    kinds: tuple[str, ...]

    def entry(self, name: str, says: str, change: StepChange, rule: str = "", filling: str = "") -> StepMistake:
        return StepMistake(f"{self.name}.{name}", rule or self.rule, says, change, self.kinds, filling)


def replace_function(function: Callable[..., Any]) -> StepChange:
    """Return a change that takes another function, with the same arguments."""
    return lambda step: step._replace(function=function)


def set_keywords(**keywords: Any) -> StepChange:
    return lambda step: step._replace(keywords=step.keywords | keywords)


def change_argument(index: int, change: Callable[[Any], Any]) -> StepChange:
    """Return a change of one argument; a step whose argument does not allow it stays as it is."""

    def changed(step: Step) -> Step:
        try:
            return step.argument(index, change(step.arguments[index]))
        except (ValueError, AttributeError):
            return step

    return changed


def change_fields(index: int, **fields: Any) -> StepChange:
    """Return a change of fields of one argument, a configuration."""
    return change_argument(index, lambda configuration: replace(configuration, **fields))


# --- scopes -----------------------------------------------------------------------------------------------------------

SUBLAYERS = ("attention", "self_attention", "cross_attention", "feed_forward")
PARTS = (*SUBLAYERS, *(f"{name}_norm" for name in SUBLAYERS), *(f"{name}_output_norm" for name in SUBLAYERS))


def list_stacks(computation: Computation) -> dict[str, Encoder | Decoder]:
    """By the beginning of the names of its steps, each stack of blocks."""
    p: Any = computation.parameters
    if isinstance(p, Encoder | Decoder):
        return {"": p}
    return {f"{name}.": part for name, part in p._asdict().items() if isinstance(part, Encoder | Decoder)}


def replace_stack(computation: Computation, name: str, stack: Encoder | Decoder) -> Computation:
    if not name:
        return computation.change(parameters=stack)
    p: Any = computation.parameters
    return computation.change(parameters=p._replace(**{name.rstrip("."): stack}))


def change_stacks(computation: Computation, change: Callable[[Any], Any]) -> Computation:
    for name, stack in list_stacks(computation).items():
        computation = replace_stack(computation, name, change(stack))
    return computation


def list_scopes(computation: Computation) -> list[Scope]:
    """Return scopes, the largest first: everywhere, a stack, all blocks but one, a block, a sublayer, a norm."""
    stacks = list_stacks(computation)
    blocks = [f"{name}blocks.{i}." for name, stack in stacks.items() for i in range(len(stack.blocks))]
    found: list[Scope] = [()]
    found += [(name,) for name in stacks] if len(stacks) > 1 else []
    found += [tuple(blocks)]
    found += [tuple(blocks[1:]), tuple(blocks[:-1])] if len(blocks) > 2 else []
    found += [tuple(blocks[::2]), tuple(blocks[1::2])] if len(blocks) > 3 else []
    found += [tuple(f"{block}{part}" for block in blocks for part in PARTS if part.endswith("_output_norm"))]
    found += [tuple(f"{block}{part}" for block in blocks) for part in PARTS]
    found += [(block,) for block in blocks]
    found += [(f"{block}{part}",) for block in blocks for part in PARTS]
    found += [(f"{name}{part}",) for name in stacks for part in ("embedding", "norm")]
    return found


def limit_mistakes(computation: Computation, mistakes: tuple[StepMistake, ...]) -> Iterator[ModelMistake]:
    """Give the mistakes in every scope in which they reach other steps, the largest first."""
    steps: set[tuple[str, str]] = set()

    def note(step: Step) -> Step:
        steps.add((step.kind, step.name))
        return step

    computation.rewrite(note).run()
    scopes = list_scopes(computation)
    for mistake in mistakes:
        names = [name for kind, name in steps if kind in mistake.kinds]
        seen: set[frozenset[str]] = {frozenset()}
        for scope in scopes:
            reached = frozenset(name for name in names if not scope or name.startswith(scope))
            if reached not in seen:
                seen.add(reached)
                yield mistake.limit_to(tuple(part for part in scope if any(name.startswith(part) for name in names)))
