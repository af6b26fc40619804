"""Closed formulas evaluated: at points, over grids, and in search of what fits."""
