"""The three implementations side by side: a site that is generated from their sources, `python -m study --out DIR`.

`sources` reads functions as text, `columns` puts them beside each other step by step, `operations` says which belong to
an operation, and `site` makes pages of it. Nothing here is needed to compute or to judge.
"""
