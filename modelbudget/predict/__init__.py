"""Evaluation of closed formulas: at points, over grids, and to solve for what fits a device."""
