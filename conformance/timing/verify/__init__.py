"""Whether a timed result is right: the judge's bounds, at the real sizes."""
