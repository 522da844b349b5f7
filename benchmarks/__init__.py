"""Timings of the attention core and of layer norm: judged before, while and after they are taken.

`python -m benchmarks` runs them; docs/benchmarks.md says how, and what every number means. Read in this order: cases,
work, subjects (and the file of each framework), gate, clocks, station, workers, rounds, statistics, ceilings, memory,
running, result.
"""
