"""Several devices that share a model, on the tape of one of them."""
