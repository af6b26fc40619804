"""Processes and devices in which models are measured: memory, limits, pools."""
