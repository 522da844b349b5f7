"""The plan of sizes: at which sizes every operation is tried, and in which combinations.

Kernels change their way at sizes: a second tile, another kernel past some width, indices that no longer fit. A test
case makes one or two dimensions large and leaves all others tiny, so it stays cheap. Pairs of large ranges
have rows of their own, which come last.

`covering.py` lists the sizes of each dimension and combines them so that every pair meets, `attention.py` and
`layers.py` make rows of the plan from them. `strategies.py` draws a test case for a row.
"""
