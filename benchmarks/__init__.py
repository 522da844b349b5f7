"""The project's own suite: which cases and libraries are timed, and what many cases, or two results, say.

`python -m benchmarks` runs it; docs/benchmarks.md says how. `conformance.timing` times, judges and prints.
"""
