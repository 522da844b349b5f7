"""The three implementations side by side, step by step, below their rules: for `conformance show`, and for the site."""
