"""Training jobs over HTTP: joined by key, followed and resumed by event, remembered after their end."""

from __future__ import annotations

import json
import math

from gateway_support import Gateway, events_of

from ludus_backend.gateway.jobs import finite_result


def start(gateway: Gateway, key: str, step: int) -> str:
    response = gateway.post("/v1/ludus/models/demo/train", {"key": key, "expectedStep": step, "groups": []})
    assert response.status_code == 200, response.text
    return response.json()["job"]


def follow(gateway: Gateway, job: str, query: str = "", **headers: str) -> list[dict]:
    return events_of(gateway.client.get(f"/v1/ludus/jobs/{job}/events{query}", headers=headers).text)


def test_a_job_reports_progress_then_its_result_and_can_be_read_again(own_gateway) -> None:
    gateway = own_gateway
    step = gateway.client.get("/v1/ludus/models/demo").json()["step"]
    job = start(gateway, "one", step)
    assert start(gateway, "one", step) == job
    events = follow(gateway, job)
    assert [event["sequence"] for event in events] == [1, 2, 3, 4]
    assert [event["type"] for event in events] == ["progress"] * 3 + ["completed"]
    assert events[0] == {"sequence": 1, "type": "progress", "done": 1, "total": 3, "phase": "update"}
    assert events[3]["result"]["step"] == step + 1
    assert follow(gateway, job, "?after=2") == events[2:]
    assert follow(gateway, job, **{"last-event-id": "3"}) == events[3:]
    assert follow(gateway, job, "?after=99") == []
    raw = gateway.client.get(f"/v1/ludus/jobs/{job}/events").text
    assert raw.startswith("id: 1\ndata: {") and "id: 4\n" in raw
    assert gateway.client.get("/v1/ludus/models/demo").json()["steps"] == [*range(step + 2)]
    assert gateway.client.get("/v1/ludus/models/demo/checkpoints").json() == {"checkpoints": []}


def test_a_cut_event_stream_goes_on_where_it_stopped(own_gateway) -> None:
    gateway = own_gateway
    step = gateway.client.get("/v1/ludus/models/demo").json()["step"]
    job = start(gateway, "cut", step)
    with gateway.client.stream("GET", f"/v1/ludus/jobs/{job}/events") as response:
        seen = next(json.loads(line[6:])["sequence"] for line in response.iter_lines() if line.startswith("data: "))
    rest = follow(gateway, job, f"?after={seen}")
    assert [event["sequence"] for event in rest] == [*range(seen + 1, 5)]


def test_a_refused_update_is_a_failed_job_with_the_engines_error(own_gateway) -> None:
    gateway = own_gateway
    events = follow(gateway, start(gateway, "conflict", 77))
    assert events[-1]["type"] == "failed"
    assert (events[-1]["error"]["code"], events[-1]["error"]["field"]) == ("step_conflict", "expectedStep")
    assert start(gateway, "conflict", 77) != start(gateway, "another", 77)


def test_json_01_metrics_that_are_no_numbers_are_named_and_the_text_stays_json(own_gateway) -> None:
    """The fake engine sends NaN and Infinity literals, as a careless one would."""
    gateway = own_gateway
    step = gateway.client.get("/v1/ludus/models/demo").json()["step"]
    raw = gateway.client.get(f"/v1/ludus/jobs/{start(gateway, 'nan', step)}/events").text
    assert "NaN" not in raw and "Infinity" not in raw
    result = events_of(raw)[-1]["result"]
    assert result["metrics"] == {"tokens": 3.0}
    assert result["nonFinite"] == ["grad_norm", "loss"]


def test_json_01_null_metrics_and_those_the_engine_named_are_left_out_too() -> None:
    answer = {
        "step": 1,
        "trained": True,
        "policy": "m@1",
        "metrics": {"a": None, "b": -math.inf, "c": 0},
        "nonFinite": ["d"],
    }
    result = finite_result(answer)
    assert (result.metrics, result.non_finite) == ({"c": 0.0}, ["a", "b", "d"])
    assert finite_result({"step": 1, "trained": False, "policy": "m@1", "metrics": {}}).non_finite == []
