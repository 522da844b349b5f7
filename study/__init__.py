"""The three implementations side by side: a site generated from their sources, `python -m study --out DIR`.

`sources` reads functions as text, `columns` aligns their steps, `operations` lists the functions of each operation, and
`site` writes the pages. Neither the packages nor the judge need this folder.
"""
