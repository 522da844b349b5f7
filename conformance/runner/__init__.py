"""How cases are run: making failing ones smaller, and finding where along each dimension a failure begins."""
