"""The third witness: other people's implementations, built from configs, never downloaded."""
