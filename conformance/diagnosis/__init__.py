"""Which known mistakes explain a subject's wrong answers: found by experiment, once, after the run.

A mistake explains a case where its predicted answers are the subject's, within the bound, and not the right ones.
"""
