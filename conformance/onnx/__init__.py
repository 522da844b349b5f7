"""ONNX's own test cases for attention, norms and losses, as cases of the operations here.

`attention.py`, `normalization.py` and `losses.py` say how ONNX's operators map to the definition, and where they differ
from it. `conformance dev onnx` puts the cases to the three implementations; with `--faults` it also counts which of the
planted faults ONNX's cases and tolerances catch. Needs the `onnx` package.
"""
