"""What several folders need and none owns: files, errors, expressions, processes."""
