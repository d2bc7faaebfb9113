"""Supervised fine-tuning as a job: the gateway renders messages into rows, the engine makes one step an update."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ludus_backend.data.batches import batches
from ludus_backend.data.examples import ExampleRow, chosen_turns, example_row
from ludus_backend.data.schedule import learning_rate
from ludus_backend.errors import LudusError
from ludus_backend.gateway.chat_request import plain_message
from ludus_backend.gateway.engine_client import EngineClient
from ludus_backend.gateway.engine_wire import OnEvent
from ludus_backend.gateway.http_errors import invalid_fields
from ludus_backend.gateway.jobs import Work, finite_result
from ludus_backend.gateway.models import ServedModel
from ludus_backend.protocol import SftRequest, TrainResult


@dataclass(frozen=True)
class ReadSft:
    """``tools`` as they were sent, one entry an example: they are rendered with their keys in that order."""

    request: SftRequest
    tools: list[list[dict[str, Any]] | None]


@dataclass(frozen=True)
class SftRows:
    """Examples that can be trained, in the order they were sent, and how many were left out and why."""

    rows: list[ExampleRow]
    too_long: int
    without_target: int


def read_sft_request(body: bytes) -> ReadSft:
    """Errors: ``invalid_request`` with the first offending field (``examples[3].messages[1].content``)."""
    try:
        request = SftRequest.model_validate_json(body)
    except ValidationError as error:
        raise invalid_fields(error.errors()) from None
    return ReadSft(request, [example.get("tools") or None for example in json.loads(body)["examples"]])


def render_examples(read: ReadSft, model: ServedModel) -> SftRows:
    """Every example as a row. Examples without a trained token are left out and counted.

    Raises ``LudusError(invalid_request)`` naming the example: longer than the context (unless ``tooLong`` is ``skip``),
    or nothing to train in any of them.
    """
    config, context = read.request.config, model.info.context_length
    rows: list[ExampleRow] = []
    too_long = without_target = 0
    for index, example in enumerate(read.request.examples):
        messages = [plain_message(message.model_dump(exclude_none=True)) for message in example.messages]
        chosen = chosen_turns(messages, config.train)
        spoken = [{name: value for name, value in message.items() if name != "weight"} for message in messages]
        try:
            row = example_row(model.renderer, spoken, read.tools[index], chosen, model.stop_ids)
        except LudusError as error:
            raise _placed(error, index) from None
        except (ValueError, TypeError, KeyError) as error:
            raise _refused(index, f"this conversation cannot be rendered: {error}", None, "a conversation") from error
        if len(row.ids) > context:
            if config.too_long == "refuse":
                expected = f"at most {context} tokens, the model's context"
                message = "an example is longer than the model's context; it is never cut"
                raise _refused(index, message, f"{len(row.ids)} tokens", expected)
            too_long += 1
        elif not row.trained:
            without_target += 1
        else:
            rows.append(row)
    if not rows:
        counted = f"{too_long} too long, {without_target} without a trained assistant turn"
        raise _refused(None, "there is nothing to train", counted, "an example with an assistant turn of weight 1")
    return SftRows(rows, too_long, without_target)


def sft_work(engine: EngineClient, model: ServedModel, read: ReadSft) -> Work:
    """All updates, one after the other; the engine answers those it made before without making them again."""
    request, config = read.request, read.request.config

    async def work(on_event: OnEvent) -> TrainResult:
        rendered = await asyncio.to_thread(render_examples, read, model)
        plan = batches([len(row.ids) for row in rendered.rows], config)
        results: list[TrainResult] = []
        for number, batch in enumerate(plan):
            on_event({"done": number, "total": len(plan), "phase": "sft"})
            rate = learning_rate(number, len(plan), config)
            update = {
                "key": f"{request.key}:{number}",
                "expectedStep": request.expected_step + number,
                "rows": [{"ids": rendered.rows[i].ids, "trained": rendered.rows[i].trained} for i in batch],
                "config": config.model_copy(update={"learning_rate": rate}).model_dump(by_alias=True),
            }
            answer = await engine.request("sft", {"name": model.info.name, "request": update})
            results.append(finite_result(answer))
            if not results[-1].trained:
                break
            model.committed(results[-1])
        return _summary(results, rendered)

    return work


def _summary(results: list[TrainResult], rendered: SftRows) -> TrainResult:
    """The last update's result, with what is true of all of them."""
    last, made = results[-1], [result for result in results if result.trained]
    losses = [result.metrics["sft/loss"] for result in made]
    figures: dict[str, float] = {
        "sft/updates": len(made),
        "sft/examples": len(rendered.rows),
        "sft/examples_too_long": rendered.too_long,
        "sft/examples_without_target": rendered.without_target,
    }
    if losses:
        figures |= {"sft/first_loss": losses[0], "sft/mean_loss": sum(losses) / len(losses)}
    update = {
        "trained": bool(made),
        "repeated": all(result.repeated for result in results),
        "metrics": {**last.metrics, **figures},
    }
    return last.model_copy(update=update)


def _placed(error: LudusError, index: int) -> LudusError:
    detail = error.detail
    return LudusError.from_detail(detail.model_copy(update={"field": f"examples[{index}].{detail.field}"}))


def _refused(index: int | None, message: str, value: object, expected: str) -> LudusError:
    return LudusError(
        "invalid_request",
        message,
        field="examples" if index is None else f"examples[{index}]",
        value=value,
        expected=expected,
        advice="correct the example or leave it out; nothing was trained",
    )
