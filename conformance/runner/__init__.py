"""Running: shrinking to thresholds, worker processes, fresh processes."""
