"""Ports of whole models under judgement: somebody's own function for a dialect, in any framework.

The judge draws small checkpoints (`checkpoints.py`) of small configs (`configs.py`) and calls the port on them
(`subject.py`). It compares what the port returns with the definition in float64 (`cases.py`, `noise.py`,
`observation.py`). What is wrong is traced to a sublayer, and explained by known mistakes (`diagnosis.py`, `mistakes/`).
`checking.py` puts this together.
"""
