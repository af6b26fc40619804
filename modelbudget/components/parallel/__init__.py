"""A model that several devices share, by closed formulas: what one of them holds and computes.

A search reads them over thousands of layouts, each of which a program would take 5 to 20 ms.
"""
