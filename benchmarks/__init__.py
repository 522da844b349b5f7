"""Timings of the attention core and of layer norm. Every result is judged before, during and after its timing.

`python -m benchmarks` runs them; docs/benchmarks.md says how, and what every number means. `cases.py` says what is
timed and `work.py` how much work that is. The folders, from the lowest to the highest:

subjects/   the implementations, by framework
verify/     whether their results are right
measure/    clocks, memory, processes, and the run itself
results/    what is stored, printed, plotted and compared
"""
