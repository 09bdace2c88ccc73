"""Plumbline: differentially private training in PyTorch, and what clipping does to the gradient."""

__version__ = "0.1.0.dev0"
