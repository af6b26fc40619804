"""The story at the top of the page: one act a file, drawn as SVG before any script runs."""
