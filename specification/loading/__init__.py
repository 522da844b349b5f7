"""Loading of checkpoints: what a dialect is, the table that it is made of, and how a checkpoint is read by it."""
