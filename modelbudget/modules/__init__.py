"""The torch modules, one part of a model a file.

A parameter's path, without the layer's index and the final `weight` or `bias`, is the name of
its component: `layer.3.attention.query.weight` counts as `layer.attention.query`. So attribute
names here are the component names of the formulas, and that is all the two share.

Constructors allocate; `initialise` (modules/initialise.py) fills.
"""
