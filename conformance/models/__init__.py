"""Whole models under judgement.

A bound for a whole model that is carried through its layers by absolute values alone grows with every layer until it
excuses everything. So a model is judged in two ways, with bounds that stay sharp:

1. Step by step (`stepwise.py`). The definition runs in float64; then every step of the implementation (an attention, a
   sum, a norm, a feed-forward network) is given the definition's own activations, rounded to the model's dtype, and its
   result is held to the bound of that one operation. An error shows in the step that makes it, and nowhere after.
2. From end to end, by an error bound carried through the whole model (`error_propagation.py`): the bounds of all steps,
   taken through the definition's own derivative. It holds for outputs and for the gradients of every parameter, also of
   modules of which only the result can be seen.

How the steps of an implementation become visible is told in `instrumentation.py`.
"""
