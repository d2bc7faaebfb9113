"""Sampled tokens per second: this backend's HTTP endpoint against ``generate`` of transformers.

    python benchmarks/bench_sampler.py [--threads 2] [--conversations 32] [--turns 4] [--tokens 32]

Both sides hold the same conversations: a shared system prompt, ``--user-tokens`` new tokens a turn, exactly
``--tokens`` sampled ones a turn (end-of-turn ids do not stop), the bundled model in fp32 with the same trained adapter
of rank 8. Ours: the real gateway as a child process, every conversation a client of its own. Theirs: one batch a turn,
left-padded, KV cache on, adapter attached, the whole history prompted again. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

BACKEND = Path(__file__).resolve().parents[1]
MODEL = "bench"
SPOT_CHECKS = 4
"""Conversations whose log-probabilities are computed again by a plain forward pass."""


@dataclass
class Plan:
    """What both sides are asked."""

    system: str
    users: list[list[str]]
    """``[conversation][turn]``."""
    tokens: int


@dataclass
class Result:
    seconds: float
    sampled: int
    prompt_tokens: list[int] = field(default_factory=list)
    """Prompt length of each turn (the longest conversation's)."""
    exchanges: list[dict[str, Any]] = field(default_factory=list)
    """The last turns, as the endpoint answered them."""

    @property
    def rate(self) -> float:
        return self.sampled / self.seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="torch threads of either side")
    parser.add_argument("--conversations", type=int, default=32)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32, help="sampled tokens a turn")
    parser.add_argument("--system-tokens", type=int, default=256)
    parser.add_argument("--user-tokens", type=int, default=64)
    parser.add_argument("--base", choices=["bundled", "random"], default="bundled", help="random: a quick trial run")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as state:
        ours, plan, adapter, tokenizer = asyncio.run(measure_ours(chosen, Path(state)))
        theirs, difference = measure_theirs(chosen, plan, adapter, tokenizer, ours)
    print_report(chosen, ours, theirs, difference)
    return 0


# --- ours -------------------------------------------------------------------------------------------------------------


async def measure_ours(chosen: argparse.Namespace, state: Path) -> tuple[Result, Plan, Path, Path]:
    """Starts the gateway, trains one step so that the adapter is not zero, and holds all conversations at once."""
    command = [sys.executable, "-m", "ludus_backend", "serve", "--state", str(state / "backend")]
    gateway = subprocess.Popen(
        [*command, "--threads", str(chosen.threads), "--parent-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(BACKEND), "LUDUS_BENCH_TOKEN": "bench"},
    )
    assert gateway.stdin is not None and gateway.stdout is not None
    try:
        port = json.loads(gateway.stdout.readline())["port"]
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, limits=limits) as client:
            registered = await post(client, "/v1/ludus/models", {"name": MODEL, "base": {"source": chosen.base}})
            tokenizer = tokenizer_folder(registered["base"]["source"])
            plan = make_plan(chosen, tokenizer)
            await train_once(client)
            checkpoints = (await client.get(f"/v1/ludus/models/{MODEL}/checkpoints")).json()["checkpoints"]
            adapter = Path(checkpoints[-1]["path"])
            kept = state / "adapter"
            kept.mkdir()
            for file in ("adapter_config.json", "adapter_model.safetensors"):
                (kept / file).write_bytes((adapter / file).read_bytes())
            started = time.perf_counter()
            talks = await asyncio.gather(*(talk(client, plan, index) for index in range(chosen.conversations)))
            seconds = time.perf_counter() - started
    finally:
        gateway.stdin.close()
        gateway.wait()
        gateway.stdout.close()
    sampled = sum(reply["usage"]["completion_tokens"] for replies in talks for reply in replies)
    lengths = [max(replies[turn]["usage"]["prompt_tokens"] for replies in talks) for turn in range(chosen.turns)]
    return Result(seconds, sampled, lengths, [replies[-1] for replies in talks]), plan, kept, tokenizer


async def talk(client: httpx.AsyncClient, plan: Plan, index: int) -> list[dict[str, Any]]:
    """One conversation, turn after turn, in an episode of its own."""
    episode = await post(client, "/v1/ludus/episodes", {})
    messages: list[dict[str, Any]] = [{"role": "system", "content": plan.system}]
    replies = []
    for turn, user in enumerate(plan.users[index]):
        messages.append({"role": "user", "content": user})
        body = {
            "model": f"{MODEL}@1",
            "messages": messages,
            "max_tokens": plan.tokens,
            "ignore_eos": True,
            "logprobs": True,
            "seed": 1000 * index + turn,
        }
        reply = await post(client, "/v1/chat/completions", body, {"authorization": f"Bearer {episode['key']}"})
        replies.append(reply)
        messages.append(reply["choices"][0]["message"])
    return replies


async def train_once(client: httpx.AsyncClient) -> None:
    """One update on two replies, so that the adapter of step 1 changes the model."""
    messages = [{"role": "user", "content": "Say something."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 8, "n": 2, "seed": 1, "logprobs": True}
    reply = await post(client, "/v1/chat/completions", body)
    trajectories = [
        {
            "id": f"t{index}",
            "reward": index,
            "exchanges": [
                {
                    "id": f"e{index}",
                    "prefixHash": choice["ludus"]["prefixHash"],
                    "promptIds": reply["prompt_token_ids"],
                    "sampledIds": choice["token_ids"],
                    "logprobs": [entry["logprob"] for entry in choice["logprobs"]["content"]],
                    "policy": choice["ludus"]["policy"],
                }
            ],
        }
        for index, choice in enumerate(reply["choices"])
    ]
    request = {
        "key": "bench",
        "expectedStep": 0,
        "groups": [{"id": "g", "trajectories": trajectories}],
        "config": {"learningRate": 1e-3},
    }
    job = (await post(client, f"/v1/ludus/models/{MODEL}/train", request))["job"]
    async with client.stream("GET", f"/v1/ludus/jobs/{job}/events") as events:
        async for line in events.aiter_lines():
            if line.startswith("data:") and json.loads(line[5:])["type"] == "failed":
                raise RuntimeError(line)


async def post(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
) -> dict[str, Any]:
    response = await client.post(path, json=body, headers=headers)
    if response.is_error:
        raise RuntimeError(f"{path}: {response.status_code} {response.text}")
    answer: dict[str, Any] = response.json()
    return answer


# --- the conversations ------------------------------------------------------------------------------------------------


def tokenizer_folder(source: str) -> Path:
    """Both bases use the bundled tokenizer."""
    sys.path.insert(0, str(BACKEND))
    from ludus_backend.models.base_model import cache_folder
    from ludus_backend.models.bundled import bundled_folder

    assert source in ("bundled", "random")
    return bundled_folder(cache_folder())


def make_plan(chosen: argparse.Namespace, folder: Path) -> Plan:
    """Texts of exactly so many tokens, from words that are one token each."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    words = sorted(token[1:] for token in tokenizer.get_vocab() if token[:1] == "Ġ" and token[1:].isalpha())
    words = [word for word in words if word.isascii() and word.islower() and len(word) > 2]
    draw = random.Random(0)

    def text(tokens: int) -> str:
        found = [draw.choice(words)]
        while (length := len(tokenizer.encode(" ".join(found)).ids)) < tokens:
            found.append(draw.choice(words))
        return " ".join(found) if length == tokens else text(tokens)

    system = text(chosen.system_tokens)
    users = [[text(chosen.user_tokens) for _ in range(chosen.turns)] for _ in range(chosen.conversations)]
    return Plan(system, users, chosen.tokens)


# --- theirs -----------------------------------------------------------------------------------------------------------


def measure_theirs(
    chosen: argparse.Namespace, plan: Plan, adapter: Path, tokenizer_folder: Path, ours: Result
) -> tuple[Result, float]:
    """``generate`` at one batch a turn; and how far our log-probabilities are from a plain forward pass, at most."""
    import torch
    from peft import PeftModel
    from transformers import AutoTokenizer

    from ludus_backend.models.base_model import cache_folder, load_base
    from ludus_backend.protocol import BaseModelSpec

    torch.set_num_threads(chosen.threads)
    base = load_base(BaseModelSpec(source=chosen.base), cache_folder())
    base.model.set_attn_implementation("sdpa")
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    model = PeftModel.from_pretrained(base.model, adapter).eval()

    def prompt(messages: list[dict[str, str]]) -> list[int]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    turn_start, turn_end = "<|im_end|>\n<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    histories = [
        prompt([{"role": "system", "content": plan.system}, {"role": "user", "content": users[0]}])
        for users in plan.users
    ]
    torch.manual_seed(0)
    result = Result(0.0, 0)
    started = time.perf_counter()
    for turn in range(chosen.turns):
        longest = max(map(len, histories))
        ids = torch.tensor([[tokenizer.pad_token_id] * (longest - len(one)) + one for one in histories])
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in histories])
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                min_new_tokens=plan.tokens,
                max_new_tokens=plan.tokens,
                pad_token_id=tokenizer.pad_token_id,
            )
        result.sampled += output[:, longest:].numel()
        result.prompt_tokens.append(longest)
        for index, one in enumerate(histories):
            one += output[index, longest:].tolist()
            if turn + 1 < chosen.turns:
                user = turn_start + plan.users[index][turn + 1] + turn_end
                one += tokenizer.encode(user, add_special_tokens=False)
    result.seconds = time.perf_counter() - started

    difference = 0.0
    for reply in ours.exchanges[:SPOT_CHECKS]:
        before, choice = reply["prompt_token_ids"], reply["choices"][0]
        sampled = choice["token_ids"]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([before + sampled])).logits[0, len(before) - 1 : -1]
        plain = torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(sampled)[:, None])[:, 0]
        reported = torch.tensor([entry["logprob"] for entry in choice["logprobs"]["content"]])
        difference = max(difference, float((plain - reported).abs().max()))
    return result, difference


# --- the report -------------------------------------------------------------------------------------------------------


def print_report(chosen: argparse.Namespace, ours: Result, theirs: Result, difference: float) -> None:
    print(f"{chosen.conversations} conversations, {chosen.turns} turns, {chosen.tokens} sampled tokens a turn,")
    print(f"{chosen.base} model, fp32, LoRA of rank 8, {chosen.threads} threads\n")
    print(f"{'':<24}{'seconds':>10}{'tokens':>10}{'tokens/s':>10}   prompt tokens by turn")
    for name, result in (("ludus over HTTP", ours), ("transformers generate", theirs)):
        lengths = " ".join(map(str, result.prompt_tokens))
        print(f"{name:<24}{result.seconds:>10.1f}{result.sampled:>10}{result.rate:>10.1f}   {lengths}")
    print(f"\nratio {ours.rate / theirs.rate:.2f}; largest log-probability difference {difference:.1e}\n")
    figures = {
        "benchmark": "sampler",
        "threads": chosen.threads,
        "conversations": chosen.conversations,
        "turns": chosen.turns,
        "tokensPerTurn": chosen.tokens,
        "base": chosen.base,
        "oursTokensPerSecond": round(ours.rate, 2),
        "theirsTokensPerSecond": round(theirs.rate, 2),
        "oursSeconds": round(ours.seconds, 2),
        "theirsSeconds": round(theirs.seconds, 2),
        "ratio": round(ours.rate / theirs.rate, 3),
        "largestLogprobDifference": difference,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    sys.exit(main())
