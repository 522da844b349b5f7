"""Which known mistake gives the answers that a subject gave: a name for what is wrong, beyond "differs".

A mistake is tried out on the failing case: where its exact answers are the subject's, within the bound, it is named.
"""
