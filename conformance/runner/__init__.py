"""Where test cases run: in this process, and in worker processes beside it."""
