"""Attention over several ranks of torch_impl: time, bytes and memory of a rank, and how all three grow.

`measuring.py` starts processes, which run `rank_worker.py`, and judges what they compute. `formulas.py` has the bytes
that a rank sends. `growth.py` plays a schedule for more ranks than this machine has processors. `tables.py` prints it.
"""
