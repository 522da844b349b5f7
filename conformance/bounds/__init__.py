"""How far from exact an honest implementation may be, derived for every element of every result.

`bound(case)` gives, for each result and gradient of the case, an array of the largest admissible |got - exact|. See
`arithmetic.py` for the model of rounding, and each operation's file for its derivation.
"""

from conformance.bounds.operations import (
    bound,
    grows_with_scores,
    merged_bound,
    relaxed_bound,
    relaxed_merged_bound,
)

__all__ = ["bound", "grows_with_scores", "merged_bound", "relaxed_bound", "relaxed_merged_bound"]
