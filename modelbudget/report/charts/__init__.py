"""Charts: pure functions from Polars tables to Altair charts.

`sweep_charts.py` lists the kinds of charts; each says of which axes and quantities it is. A chart
shows real points: if there are too many, it shows evenly spaced ones and never averages.
"""
