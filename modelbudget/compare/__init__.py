"""Tables that hold prediction, measurement and reference next to each other."""
