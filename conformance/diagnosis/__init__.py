"""Which known mistake gives the answers that a subject gave: a name for what is wrong, beyond "differs".

A mistake is tried out on the failing case: where its exact answers are the subject's, within the bound, it is named.
"""

WRONG_IN = "wrong in: "
"""How the line of a diagnosis begins that says which results are wrong, and names no mistake."""
