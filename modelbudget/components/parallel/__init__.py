"""A model that several devices share, by closed formulas: what one of them holds and computes."""
