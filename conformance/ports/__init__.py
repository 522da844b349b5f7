"""Ports of whole models under judgement: somebody's own function for a dialect, in any framework.

The judge draws small checkpoints (`checkpoints.py`), calls the port on them (`subject.py`), and compares what it returns
with the definition in float64 (`cases.py`, `noise.py`). What is wrong is traced to a sublayer and explained by known
mistakes (`diagnosis.py`, `mistakes.py`). `checking.py` puts this together.
"""
