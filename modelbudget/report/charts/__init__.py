"""Charts: pure functions from Polars tables to Altair charts.

`select.py` chooses the charts of a sweep from its axes and quantities. A chart shows real points:
if there are too many, it shows evenly spaced ones and never averages.
"""
