"""Output of a run: a line for each job, progress bars on a terminal, and a summary at the end.

The Snakefile attaches a handler to Snakemake's logger that replaces the default one, which prints
input, parameters and digests of each job. It is not a logger plugin, since Snakemake does not start
if a plugin is not installed. snakemake-logger-plugin-rich 0.5.1 shows neither the time of a job,
nor progress inside it, nor results, and draws its bars by rule.
"""
