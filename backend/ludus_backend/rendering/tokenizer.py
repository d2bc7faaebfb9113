"""A tokenizer for renderers, straight on ``tokenizers``: importing transformers would cost seconds and load torch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ludus_backend.errors import LudusError

_CACHED_TEXTS = 4096
_LONGEST_CACHED_TEXT = 32_768
"""Characters. Observations and system turns repeat across a group; one huge tool result should not evict them."""


class FastTokenizer:
    """What the ``renderers`` package asks of a tokenizer, plus cached encoding and exact bytes per token.

    ``literal_special_tokens``: text such as ``<|im_end|>`` *inside a message* becomes ordinary characters instead of
    the control token, so that no observation or tool result can close its own turn. Control tokens that a template
    needs are taken by id (:meth:`convert_tokens_to_ids`).
    """

    def __init__(self, folder: Path, name: str, *, literal_special_tokens: bool = False) -> None:
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise LudusError(
                "model_missing",
                f"The model has no {file.name}",
                field="base",
                value=folder,
                expected="a model folder with a tokenizer.json (the format of the tokenizers package)",
                advice="save the tokenizer with tokenizer.save_pretrained(folder) and register the model again",
            )
        self.folder = folder
        self.name_or_path = name
        self._tokenizer = Tokenizer.from_file(str(file))
        self._tokenizer.encode_special_tokens = literal_special_tokens
        settings = _json_or_empty(folder / "tokenizer_config.json")
        self.eos_token_id = self._id_of(settings.get("eos_token"))
        self.unk_token_id = self._id_of(settings.get("unk_token"))
        template = folder / "chat_template.jinja"
        stored = template.read_text("utf-8") if template.is_file() else settings.get("chat_template")
        self.chat_template: str = stored if isinstance(stored, str) else ""
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.longest_token = max(map(len, self._tokenizer.get_vocab()))
        """Characters; so a text of ``n`` characters has at least ``n / longest_token`` tokens."""
        self._byte_level = "ByteLevel" in str(self._tokenizer.decoder)
        self._cached_ids = lru_cache(maxsize=_CACHED_TEXTS)(self._encode_ids)

    @property
    def backend(self) -> Tokenizer:
        """The tokenizer of the ``tokenizers`` package, for incremental decoding."""
        return self._tokenizer

    def encode(self, text: str, *_: Any, add_special_tokens: bool = False, **__: Any) -> list[int]:
        """Token ids of ``text``. Never adds begin or end tokens: the renderer places every control token itself."""
        if len(text) > _LONGEST_CACHED_TEXT:
            return list(self._encode_ids(text))
        return list(self._cached_ids(text))

    def __call__(self, text: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Ids with character offsets: ``{"input_ids": [...], "offset_mapping": [(start, end), ...]}``."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return {"input_ids": encoding.ids, "offset_mapping": encoding.offsets}

    def decode(self, token_ids: int | Sequence[int], *_: Any, skip_special_tokens: bool = False, **__: Any) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """Id of a token, or ids of several; ``unk_token_id`` where the vocabulary has none."""
        if isinstance(tokens, str):
            found = self._tokenizer.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def has_token(self, token: str) -> bool:
        return self._tokenizer.token_to_id(token) is not None

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes one token stands for, also where they are only a part of a character."""
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is not None and self._byte_level:
            return bytes(_BYTE_OF_CHARACTER[character] for character in token)
        return self.decode([token_id]).encode()

    def _encode_ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _id_of(self, token: Any) -> int | None:
        content = token.get("content") if isinstance(token, dict) else token
        return self._tokenizer.token_to_id(content) if isinstance(content, str) else None


def _json_or_empty(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def _byte_of_character() -> dict[str, int]:
    """Inverse of GPT-2's ``bytes_to_unicode``: printable Latin-1 stands for itself, the rest is moved above U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(moved)}


_BYTE_OF_CHARACTER = _byte_of_character()
