"""Implementations under test: how a function of NumPy, PyTorch or JAX is called with a case, and differentiated."""
