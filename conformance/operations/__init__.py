"""What every operation is asked: its probes, and its frozen cases."""
