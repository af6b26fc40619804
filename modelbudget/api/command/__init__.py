"""The command `modelbudget`: one file for each subcommand."""
