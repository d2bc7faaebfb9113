"""Small models and train requests for the trainer's tests; everything follows from seeds."""

from __future__ import annotations

import random
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from ludus_backend.models.base_model import LoadedBase
from ludus_backend.models.tiny import tiny_model
from ludus_backend.protocol import BaseModelSpec, Exchange, RegisterModel, TrainGroup, TrajectoryRows
from ludus_backend.training.rows import prefix_hash

VOCABULARY = 97


def tiny_base(folder: Path) -> LoadedBase:
    """The tiny random Llama over 97 words, with its tokenizer, made without the bundled model's wheel."""
    words = {f"w{index}": index for index in range(VOCABULARY - 1)} | {"<end>": VOCABULARY - 1}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "w0")), eos_token="<end>")
    model = tiny_model(VOCABULARY, VOCABULARY - 1).requires_grad_(False).eval()
    return LoadedBase(
        spec=BaseModelSpec(source="random"),
        folder=folder,
        model=model,
        tokenizer=tokenizer,
        context_length=512,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        stop_ids=[VOCABULARY - 1],
    )


def registration(name: str = "demo", seed: int = 0) -> RegisterModel:
    return RegisterModel(name=name, base=BaseModelSpec(source="random"), seed=seed)


class Talk:
    """Builds the exchanges of one trajectory, hashes included."""

    def __init__(self, step: int = 0, temperature: float = 1.0) -> None:
        self.exchanges: list[Exchange] = []
        self._full: dict[str, list[int]] = {}
        self._step, self._temperature = step, temperature

    def say(
        self,
        prompt: list[int],
        sampled: list[int],
        logprobs: list[float] | None = None,
        parent: str | None = None,
        trained: bool = True,
    ) -> str:
        """Adds an exchange whose prompt continues ``parent``; returns its id."""
        name = f"e{len(self.exchanges)}"
        full = [*(self._full[parent] if parent else []), *prompt]
        self.exchanges.append(
            Exchange(
                id=name,
                parent=parent,
                prefix_hash=prefix_hash(full),
                prompt_ids=prompt,
                sampled_ids=sampled,
                logprobs=[-1.0] * len(sampled) if logprobs is None else logprobs,
                temperature=self._temperature,
                policy=f"demo@{self._step}",
                trained=trained,
            )
        )
        self._full[name] = [*full, *sampled]
        return name

    def trajectory(self, name: str, reward: float) -> TrajectoryRows:
        return TrajectoryRows(id=name, reward=reward, exchanges=self.exchanges)


def random_groups(seed: int, groups: int = 3, members: int = 4, step: int = 0) -> list[TrainGroup]:
    """Multi-turn groups: one system prompt, mixed lengths and temperatures, some equal histories, a fork each."""
    draw = random.Random(seed)
    system = [draw.randrange(VOCABULARY) for _ in range(5)]
    made = []
    for index in range(groups):
        prompt = [*system, *(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 6)))]
        trajectories = []
        for member in range(members):
            talk = Talk(step, temperature=draw.choice([1.0, 1.0, 0.7]))
            last = talk.say(prompt, *_sample(draw))
            for _ in range(draw.randint(0, 3)):
                last = talk.say([draw.randrange(2) for _ in range(draw.randint(1, 3))], *_sample(draw), parent=last)
            if member == 0:
                talk.say([7, 8], *_sample(draw), parent="e0")
            trajectories.append(talk.trajectory(f"{index}.{member}", draw.random()))
        made.append(TrainGroup(id=f"scenario-{index}", trajectories=trajectories))
    return made


def _sample(draw: random.Random) -> tuple[list[int], list[float]]:
    length = draw.randint(1, 4)
    return [draw.randrange(3) for _ in range(length)], [-draw.uniform(3.0, 6.0) for _ in range(length)]
