"""Caches as engines allocate them: formats, layouts, and the bytes of a request."""
