"""Programs read with symbols: one run gives the quantities of all models of a regime."""
