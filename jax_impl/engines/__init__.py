"""A faster way to the results of `jax_impl.attention`, and the choice between the two (`choice.py`).

Nothing here has to be read to know what is computed: it gives the results of `reference_attention`, to within the rules
of SPEC.md.
"""
