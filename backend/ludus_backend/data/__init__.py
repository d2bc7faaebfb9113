"""Examples of supervised fine-tuning become updates: rows of ids, batches by tokens, learning rates."""
