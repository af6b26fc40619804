"""For the server of `forked_programs`: plugins of Snakemake, looked for once among all packages."""

from snakemake.cli import get_argument_parser

get_argument_parser()  # each registry of plugins keeps those that it has seen
