"""The catalogue of known mistakes: each is a change of a computation, planted as a fault and predicting as a diagnosis.

A file for each topic; `catalogue.py` lists them. `mistake.py` says what a mistake is, `planting.py` makes a subject of
one.
"""
