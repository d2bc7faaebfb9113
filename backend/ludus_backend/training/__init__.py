"""The trainer: rows from exchanges, advantages, losses, one exact update, crash-safe checkpoints."""
