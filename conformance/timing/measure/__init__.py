"""Clocks, memory, processes, and the run that puts them together."""
