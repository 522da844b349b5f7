"""The same training run in the three packages: reviews of films told apart, step by step alike."""
