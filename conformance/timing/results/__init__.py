"""A result as data, and what a case of it says: in sentences and as a table."""
