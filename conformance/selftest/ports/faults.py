FAULTS = []
