"""Sampling from a language model with many adapters: the seam, and the implementation on torch."""
