"""Episodes: keys, leases of a policy, request ids, and their end."""

from __future__ import annotations

import asyncio
import threading

from gateway_support import Gateway, events_of, until

from ludus_backend.gateway.episodes import Episodes


def train_a_step(gateway: Gateway, key: str) -> str:
    """Trains one step and waits for its end; returns the new policy."""
    step = gateway.client.get("/v1/ludus/models/demo").json()["step"]
    accepted = gateway.post("/v1/ludus/models/demo/train", {"key": key, "expectedStep": step, "groups": []})
    events = events_of(gateway.client.get(f"/v1/ludus/jobs/{accepted.json()['job']}/events").text)
    assert events[-1]["type"] == "completed", events
    return events[-1]["result"]["policy"]


def colour(response) -> str:
    return response.json()["choices"][0]["message"]["content"]


def test_lora_01_the_plain_name_means_the_new_step_after_training_and_old_leases_stay(own_gateway) -> None:
    gateway = own_gateway
    assert colour(gateway.chat("colour", episode="before")) == "red"
    assert train_a_step(gateway, "lora-01") == "demo@1"
    fresh = gateway.chat("colour", episode="after")
    assert (colour(fresh), fresh.json()["ludus"]["policy"]) == ("blue", "demo@1")
    leased = gateway.chat("colour", episode="before")
    assert (colour(leased), leased.json()["ludus"]["policy"]) == ("red", "demo@0")
    assert colour(gateway.chat("colour")) == "blue"
    assert colour(gateway.chat("colour", episode="before", ludus={"policy": "latest"})) == "blue"
    assert colour(gateway.chat("colour", episode="before")) == "red"
    assert colour(gateway.chat("colour", episode="after", model="demo@0")) == "red"
    listed = {entry["id"]: entry for entry in gateway.client.get("/v1/models").json()["data"]}
    assert set(listed) == {"demo", "demo@0", "demo@1"}
    assert (listed["demo"]["ludus"]["step"], listed["demo"]["max_model_len"]) == (1, 512)
    assert gateway.client.get("/v1/models/demo@1").json()["ludus"]["step"] == 1
    gateway.client.delete("/v1/ludus/episodes/before")
    assert colour(gateway.chat("colour", episode="before")) == "blue"


def test_an_episodes_key_names_the_episode_and_opens_sampling_only(gateway) -> None:
    opened = gateway.post("/v1/ludus/episodes", {}).json()
    agent = gateway.connect(opened["key"])
    body = {"model": "demo", "messages": [{"role": "user", "content": "say:one;"}]}
    first = agent.post("/v1/chat/completions", json=body).json()
    message = first["choices"][0]["message"]
    longer = {**body, "messages": [*body["messages"], message, {"role": "user", "content": "say:two;"}]}
    assert agent.post("/v1/chat/completions", json=longer).json()["ludus"]["parent"] == first["ludus"]["exchange"]
    by_header = gateway.client.post("/v1/chat/completions", json=longer, headers={"x-ludus-episode": opened["id"]})
    assert by_header.json()["ludus"]["parent"] == first["ludus"]["exchange"]
    assert agent.get("/v1/models").status_code == 200
    assert agent.get("/v1/ludus/models/demo").status_code == 401
    assert agent.post("/v1/ludus/models/demo/train", json={}).status_code == 401
    crossing = agent.post("/v1/chat/completions", json=body, headers={"x-ludus-episode": "another"})
    assert (crossing.status_code, crossing.json()["error"]["field"]) == (401, "x-ludus-episode")
    gateway.client.delete(f"/v1/ludus/episodes/{opened['id']}")
    assert agent.post("/v1/chat/completions", json=body).status_code == 401


def test_opening_again_under_the_same_id_gives_the_same_key(gateway) -> None:
    first = gateway.post("/v1/ludus/episodes", {"id": "mine"}).json()
    assert gateway.post("/v1/ludus/episodes", {"id": "mine"}).json() == first
    assert gateway.post("/v1/ludus/episodes", {}).json()["id"] != gateway.post("/v1/ludus/episodes", {}).json()["id"]


def test_a_repeated_request_id_gets_the_stored_reply(gateway, episode) -> None:
    before = len(gateway.diary("generate"))
    asked = {"episode": episode, "max_tokens": 5, "ludus": {"request": "turn-1"}}
    first = gateway.chat("go", **asked)
    assert gateway.chat("go", **asked).json() == first.json()
    assert len(gateway.diary("generate")) == before + 1
    other = gateway.chat("go on", **asked)
    assert (other.status_code, other.json()["error"]["field"]) == (400, "ludus.request")
    assert gateway.chat("go", **{**asked, "ludus": {"request": "turn-2"}}).json() != first.json()
    elsewhere = gateway.chat("go", **{**asked, "episode": "another one"})
    assert elsewhere.json()["id"] != first.json()["id"]


def test_a_repeat_while_the_first_still_runs_joins_it(gateway, episode) -> None:
    before = len(gateway.diary("generate"))
    replies: list[dict] = []
    asked = {"episode": episode, "max_tokens": 10, "ludus": {"request": "joined"}}
    threads = [threading.Thread(target=lambda: replies.append(gateway.chat("slow", **asked).json())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 4 and all(reply == replies[0] for reply in replies)
    assert len(gateway.diary("generate")) == before + 1


def test_a_streamed_repeat_replays_the_same_ids(gateway, episode) -> None:
    asked = {"episode": episode, "max_tokens": 6, "ludus": {"request": "streamed"}}
    first, second = gateway.stream("go", **asked), gateway.stream("go", **asked)
    assert first == second


def test_closing_an_episode_ends_what_it_samples(gateway) -> None:
    answers = []
    thread = threading.Thread(target=lambda: answers.append(gateway.chat("slow", episode="closing", max_tokens=200)))
    thread.start()
    until(lambda: gateway.diary("generate") and gateway.diary("generate")[-1]["maxTokens"] == 200)
    running = gateway.diary("generate")[-1]
    gateway.client.delete("/v1/ludus/episodes/closing")
    thread.join()
    assert (answers[0].status_code, answers[0].json()["error"]["code"]) == (404, "unknown_episode")
    until(lambda: running["id"] in [entry["target"] for entry in gateway.diary("cancel")])
    order = [entry["op"] for entry in gateway.diary("cancel") + gateway.diary("forget") if entry]
    assert "cancel" in order and "forget" in order


def test_an_idle_episode_ends_by_itself_and_use_keeps_it_open() -> None:
    now = [0.0]
    forgotten: list[str] = []
    episodes = Episodes(forgotten.append, clock=lambda: now[0])
    short = episodes.open("short", ttl_seconds=10)
    episodes.open("long", ttl_seconds=100)
    now[0] = 9.0
    assert episodes.by_key(short.key) is short
    now[0] = 18.0
    asyncio.run(episodes.sweep())
    assert len(episodes) == 2
    now[0] = 20.0
    asyncio.run(episodes.sweep())
    assert len(episodes) == 1
    assert forgotten == [short.kv_key]
    assert episodes.by_key(short.key) is None
