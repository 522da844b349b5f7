"""Running: shrinking to thresholds, worker processes."""
