"""How long attention and layer norm take. Every result is judged before, during and after its timing.

`conformance bench` times a function, `python -m benchmarks` in a clone a whole suite. docs/benchmarks.md says how, and
what every number means. `timed_case.py` says what is timed, `sizes.py` reads it from text, and `work.py` says how much
work it is. The folders, from the lowest to the highest:

subjects/   the implementations, by framework, and any function
verify/     whether their results are right
measure/    clocks, memory, processes, and the run itself
results/    what is stored and printed

`terminal.py` shows a run.
"""
