"""Messages to token ids and back, without torch: a tokenizer, our ChatML-Hermes renderer, the choice of a family."""
