"""The ways to read one formula.

Plain integers need no file: an architecture record is its own namespace. The others replace sizes
and switches by columns, intervals, symbols or nodes of a graph. Categories (`norm: rmsnorm`) are
structure and not arithmetic: each reading takes them as given, so a formula may compare them as
plain Python does.
"""
