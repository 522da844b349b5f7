"""Faster ways to the results of `torch_impl`, and the choice among them (`choice.py`).

Nothing here has to be read to know what is computed: every engine gives the results of `reference_attention` and
`reference_layer_norm`, to within the rules of SPEC.md.
"""
