"""Trainers and estimators of other libraries, made private; each file needs an extra of its own."""
