"""What a judgement leaves behind: tables on a terminal, and one report as JSON, from which all other files are made.

`content.py` builds the report, `schema.json` says what it holds, `junit.py`, `page.py` and `comparison.py` read it.
"""
