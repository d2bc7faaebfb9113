"""Messages to token ids and back, without torch: a tokenizer, our ChatML-Hermes renderer, and the choice between families."""
