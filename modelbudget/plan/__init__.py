"""What the Snakefile needs: which sweeps run, which files they leave, and how jobs report."""
