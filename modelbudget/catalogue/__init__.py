"""Named models and accelerators, from the YAML files in configs/."""
