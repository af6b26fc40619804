"""A sweep's tables as pictures: pure functions from Polars tables to Altair charts.

Which charts a sweep gets follows from its axes alone (`choose.py`). Every chart is a view of real
points: where there are too many to draw, some are left out, and none are averaged.
"""
