"""Every call that the rules refuse."""

from __future__ import annotations

from conformance.cases.declaration import Declaration
from conformance.checks.refusals import Numbers, Refusal, concerns
from conformance.operations import OPERATIONS


def refusals_of(operation: str | None, declaration: Declaration) -> list[Refusal]:
    """Return those of one operation, or of all, that nothing but the rule speaks against.

    They are in sizes and in a dtype that the subject takes, with arguments that it has parameters for, and without
    those to which its conventions give a meaning.
    """
    array = Numbers("float32" if "float32" in declaration.dtypes else declaration.dtypes[0])
    chosen = OPERATIONS.values() if operation is None else [OPERATIONS[operation]]
    every = [refusal for one in chosen for refusal in one.refusals(declaration, array)]
    return [refusal for refusal in every if concerns(refusal.case, declaration)]
