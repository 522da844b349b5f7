"""How one case is checked, and the results of checks."""
