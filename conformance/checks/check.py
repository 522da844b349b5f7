"""What a check is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from conformance.cases.case import Case
from conformance.checks.comparison import Finding
from conformance.subjects.subject import Subject

Findings = list[Finding]
Material = TypeVar("Material")
Shared = TypeVar("Shared")


def itself(material: Case) -> Case:
    return material


def first(materials: tuple[Any, ...]) -> Case:
    """The case that the subject is asked, of two or more."""
    return materials[0]


def nothing(material: Any) -> None:
    """Nothing is shared."""


@dataclass(frozen=True)
class Check(Generic[Material, Shared]):
    """One way to check a subject.

    name: in files. material: a case, or what a case is made from. prepare: computes from it what all subjects share.
    run: calls a subject and compares its answers. case_of: the material's case. tells_size: whether a failure may say
    that the subject does not take the case's size.
    """

    name: str
    prepare: Callable[[Material], Shared]
    run: Callable[[Subject, Material, Shared], Findings]
    case_of: Callable[[Any], Case] = itself
    tells_size: bool = True
