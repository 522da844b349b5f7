"""What a result says as a whole: its growth, its pictures, its findings, and a comparison of two."""
