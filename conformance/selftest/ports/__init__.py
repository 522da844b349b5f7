"""Ports of whole models on which the judge of ports is measured: right ones, right ones written otherwise, wrong ones.

Every module but `faults`, `registry`, `measure` and the helpers (`entries`, `frequencies`, `gradients`) is one port, in
the style of the people who write such ports. `registry.py` lists them, `faults.py` has the mistakes as changes of their
source.
"""
