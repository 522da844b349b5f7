"""The implementations that are timed, by framework."""
