"""Checks: how one test case, or several in a row, are put to a subject, and what is found."""
