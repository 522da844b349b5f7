"""ONNX's own test cases for Attention, LayerNormalization and RMSNormalization, as cases of the operations here.

`attention.py` and `normalization.py` say how ONNX's operators map to the definition, and where they differ from it.
`conformance dev onnx` puts the cases to the three implementations; with `--faults` it also counts which of
the planted faults ONNX's cases and tolerances catch. Needs the `onnx` package.
"""
