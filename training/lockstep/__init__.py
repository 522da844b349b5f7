"""The same run in several implementations, compared step by step."""
