"""The engine process: one base model, its adapters, the sampler and the trainer, behind lines of JSON."""
