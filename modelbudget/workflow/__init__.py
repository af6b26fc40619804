"""Planning of a run for the Snakefile: sweeps, their files, set-up of jobs, terminal output."""
