"""Test cases: their arguments, shapes and memory, and what an implementation declares that it takes."""
