"""Files that hold models: what is in them, to the byte, read from their headers."""
