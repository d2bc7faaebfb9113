"""The committed statement of the protocol is the one the code makes."""

from __future__ import annotations

import json
import subprocess
import sys

from gateway_support import HERE


def test_openapi_json_is_current_and_names_every_body() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "ludus_backend", "openapi"], capture_output=True, text=True, cwd=HERE.parent, check=True
    ).stdout
    committed = (HERE.parent / "openapi.json").read_text("utf-8")
    assert made == committed, "run: python -m ludus_backend openapi > openapi.json"
    document = json.loads(made)
    schemas = document["components"]["schemas"]
    needed = {
        "ChatCompletionRequest",
        "ChatCompletion",
        "TrainRequest",
        "JobEvent",
        "ErrorBody",
        "LudusReply",
        "Health",
    }
    assert needed <= set(schemas)
    assert "HTTPValidationError" not in schemas
    assert set(document["paths"]) == {
        "/health",
        "/v1/chat/completions",
        "/v1/ludus/capabilities",
        "/v1/ludus/episodes",
        "/v1/ludus/forks",
        "/v1/ludus/episodes/{episode_id}",
        "/v1/ludus/jobs/{job_id}/events",
        "/v1/ludus/models",
        "/v1/ludus/models/{name}",
        "/v1/ludus/models/{name}/checkpoints",
        "/v1/ludus/models/{name}/checkpoints/delete",
        "/v1/ludus/models/{name}/export",
        "/v1/ludus/models/{name}/sft",
        "/v1/ludus/models/{name}/train",
        "/v1/models",
        "/v1/models/{model}",
    }
    for reference in set(json.dumps(document).split('"#/components/schemas/')[1:]):
        assert reference.split('"')[0] in schemas
