"""Base models: the bundled one, a tiny random one, and any folder or hub id that transformers can load."""
