"""Where subjects run: in processes of their own that have called nothing yet."""
