"""What a formula reads and returns: records of numbers, run settings, terms, readings."""
