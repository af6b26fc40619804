"""What real modules hold. Nothing here reads a formula."""
