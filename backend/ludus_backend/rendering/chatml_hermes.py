"""ChatML with Hermes tools, for models that ``renderers`` has no family for: SmolLM2, Qwen2.5, small ChatML fine-tunes.

Plain conversations are token-exact with the chat template of SmolLM2, conversations with tools with that of Qwen2.5
(SmolLM2's own template drops tools silently). A bridge never touches sampled ids, whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from renderers.base import ParsedResponse, RenderedTokens, extract_message_tool_names, reject_assistant_in_extension
from renderers.configs import BaseRendererConfig

from ludus_backend.rendering import hermes
from ludus_backend.rendering.tokenizer import FastTokenizer

START = "<|im_start|>"
END = "<|im_end|>"
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]] | None


class ChatmlHermesConfig(BaseRendererConfig):
    """``default_system``: the system text where a conversation brings none; None: then there is no system turn."""

    name: Literal["ludus-chatml"] = "ludus-chatml"
    default_system: str | None = None
    _template_fields: ClassVar[frozenset[str]] = frozenset({"default_system"})


@dataclass(frozen=True)
class Piece:
    """A stretch of one turn's text: which message it comes from (-1: the template) and whether it is message text."""

    text: str
    message: int
    content: bool = False


@dataclass(frozen=True)
class Turn:
    role: str
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


class ChatmlHermesRenderer:
    """The ``renderers.base.Renderer`` protocol; loaded through ``CustomRendererConfig(import_path=...)``."""

    config_class = ChatmlHermesConfig
    is_prefix_stable = True
    call_marker = hermes.OPEN
    """Text from here on may be a tool call."""

    def __init__(self, tokenizer: FastTokenizer, config: ChatmlHermesConfig | None = None) -> None:
        self._tokenizer = tokenizer
        self._default_system = (config or ChatmlHermesConfig()).default_system
        self._start: int = tokenizer.convert_tokens_to_ids(START)
        self._end: int = tokenizer.convert_tokens_to_ids(END)
        self._stops = sorted({self._end, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])})

    def get_stop_token_ids(self) -> list[int]:
        return list(self._stops)

    def render_ids(self, messages: Messages, *, tools: Tools = None, add_generation_prompt: bool = False) -> list[int]:
        ids = self._ids(self._with_system(messages, tools))
        return ids + self._opening() if add_generation_prompt else ids

    def render(self, messages: Messages, *, tools: Tools = None, add_generation_prompt: bool = False) -> RenderedTokens:
        rendered = RenderedTokens(
            message_roles=[message["role"] for message in messages],
            message_tool_names=extract_message_tool_names(list(messages)),
        )
        for turn in self._with_system(messages, tools):
            self._attribute(turn, rendered)
        if add_generation_prompt:
            _append(rendered, self._opening(), -1)
        return rendered

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: Sequence[int],
        previous_completion_ids: Sequence[int],
        new_messages: Messages,
        *,
        tools: Tools = None,
    ) -> RenderedTokens | None:
        """Earlier prompt and sample untouched, then only what is new. A sample without its end token gets one."""
        if reject_assistant_in_extension(list(new_messages)):
            return None
        rendered = RenderedTokens(
            message_roles=[message["role"] for message in new_messages],
            message_tool_names=extract_message_tool_names(list(new_messages)),
        )
        _append(rendered, [*previous_prompt_ids, *previous_completion_ids], -1)
        closed = bool(previous_completion_ids) and previous_completion_ids[-1] == self._end
        _append(rendered, ([] if closed else [self._end]) + self._tokenizer.encode("\n"), -1)
        for turn in _turns(new_messages):
            self._attribute(turn, rendered)
        _append(rendered, self._opening(), -1)
        rendered.sampled_mask = [False] * len(rendered.token_ids)
        return rendered

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Tools = None, prompt_ids: Sequence[int] | None = None
    ) -> ParsedResponse:
        """Text and tool calls of a sample. Control tokens in its middle stay visible: the policy did sample them."""
        ids = list(token_ids)
        if ids and ids[-1] in self._stops:
            ids.pop()
        return self.parse_text(self._tokenizer.decode(ids))

    def parse_text(self, text: str) -> ParsedResponse:
        """The same for text that was already decoded, or cut before a stop string."""
        content, calls = hermes.parse_calls(text)
        return ParsedResponse(content=content, tool_calls=calls)

    def _opening(self) -> list[int]:
        return [self._start, *self._tokenizer.encode("assistant\n")]

    def _ids(self, turns: Iterator[Turn]) -> list[int]:
        newline = self._tokenizer.encode("\n")
        ids: list[int] = []
        for turn in turns:
            ids += [self._start, *self._tokenizer.encode(turn.text), self._end, *newline]
        return ids

    def _with_system(self, messages: Messages, tools: Tools) -> Iterator[Turn]:
        given = bool(messages) and messages[0]["role"] == "system"
        system = (messages[0].get("content") or "") if given else self._default_system
        if system is not None or tools:
            pieces = [Piece("system\n", 0 if given else -1), Piece(system or "", 0 if given else -1, content=given)]
            yield Turn("system", (*pieces, *([Piece(hermes.tools_text(tools), -1)] if tools else [])))
        yield from _turns(messages[1:] if given else messages, first=1 if given else 0)

    def _attribute(self, turn: Turn, rendered: RenderedTokens) -> None:
        """Appends one turn with the message of every token, by where the token's first character comes from.

        Text is encoded in one go, as a template's output would be: a token across the seam of role and text belongs
        to the role, which the model did not sample.
        """
        encoding = self._tokenizer(turn.text)
        ends: list[int] = []
        for piece in turn.pieces:
            ends.append((ends[-1] if ends else 0) + len(piece.text))
        by_model = turn.role == "assistant"
        _append(rendered, [self._start], turn.pieces[0].message)
        for token_id, (start, _) in zip(encoding["input_ids"], encoding["offset_mapping"], strict=True):
            piece = next((p for p, end in zip(turn.pieces, ends, strict=True) if start < end), turn.pieces[-1])
            _append(rendered, [token_id], piece.message, sampled=by_model and piece.content, content=piece.content)
        _append(rendered, [self._end], turn.pieces[-1].message, sampled=by_model, content=by_model)
        _append(rendered, self._tokenizer.encode("\n"), -1)


def _turns(messages: Messages, first: int = 0) -> Iterator[Turn]:
    """ChatML turns: one a message, except that consecutive tool results share one user turn."""
    results: list[Piece] = []
    for index, message in enumerate(messages, start=first):
        role, text = message["role"], message.get("content") or ""
        if role == "tool":
            opening = "\n<tool_response>\n" if results else "user\n<tool_response>\n"
            results += [Piece(opening, index), Piece(text, index, True), Piece("\n</tool_response>", index)]
            continue
        if results:
            yield Turn("user", tuple(results))
            results = []
        made = [call["function"] for call in message.get("tool_calls") or []]
        calls = [hermes.call_text(function["name"], function["arguments"]) for function in made]
        body = "\n".join([text] * bool(text or not calls) + calls)
        yield Turn(role, (Piece(f"{role}\n", index), Piece(body, index, True)))
    if results:
        yield Turn("user", tuple(results))


def _append(
    rendered: RenderedTokens, ids: Sequence[int], message: int, *, sampled: bool = False, content: bool = False
) -> None:
    rendered.token_ids += ids
    rendered.message_indices += [message] * len(ids)
    rendered.sampled_mask += [sampled] * len(ids)
    rendered.is_content += [content] * len(ids)
