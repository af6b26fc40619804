"""A decoder around its layers, for `families/decoder.py`: one subject a file."""
