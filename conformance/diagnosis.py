"""Which known mistake gives the answers that a subject gave: a name for what is wrong, beyond "differs"."""

from __future__ import annotations

from conformance.guard import Examiner
from conformance.tally import Tally


def diagnosed(tally: Tally, examiner: Examiner) -> None:
    """Add to every violation the known mistakes that its case's answers match."""
