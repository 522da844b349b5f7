"""Checks: what is asked of a subject about one case, and what is found."""
