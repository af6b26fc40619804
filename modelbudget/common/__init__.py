"""Code shared by all folders: files, errors, expressions, worker processes, digests."""
