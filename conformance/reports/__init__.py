"""Reports: tables on a terminal, and one JSON document from which all other files are made.

`content.py` builds the report and `schema.json` describes it; `junit.py`, `page.py` and `comparison.py` read it.
"""
