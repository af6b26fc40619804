"""Measurements on real torch modules. No formula is read here."""
