"""Exact results: the definition in float64, or ball arithmetic where float64 is judged."""
