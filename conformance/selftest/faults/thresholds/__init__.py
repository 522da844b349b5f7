"""Planted faults that show only past a size: kernels that are right on small arrays.

Each file holds tables. A row gives the rule, the name, the condition on the sizes, and the wrong step.
"""
