"""Proof that the judge can fail and accuses nobody wrongly: planted faults, honest variants, tightness of bounds."""
