"""Plumbline in other libraries' ways of training: thin, on the public API."""
