"""The HTTP side of the backend: OpenAI-compatible sampling and the training routes. Never imports torch."""
