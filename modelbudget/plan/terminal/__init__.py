"""What a run prints: a line for each job, bars where a terminal is, and a summary at its end.

Snakemake sends records of what it does to the handlers of its logger. Here one handler replaces
Snakemake's own, which prints input, parameters and digests of each job. The Snakefile attaches it.
It is no logger plugin: a plugin must be installed, and where it is not (a copy, a clone, an
environment made before), Snakemake does not start. snakemake-logger-plugin-rich 0.5.1 prints no
line with the time that a job took, no progress inside a job and no results, and its bars are for
each rule.
"""
