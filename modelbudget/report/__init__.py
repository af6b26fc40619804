"""The report: one HTML file that opens from disk without a network.

`templates/` has templates, styles and scripts. The modules here compute their contents, one
subject a file; `charts/` has the charts.
"""
