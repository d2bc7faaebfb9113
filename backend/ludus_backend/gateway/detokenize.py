"""Text of a growing reply: never half a character, never a part of what may become a stop string or a tool call."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers.decoders import DecodeStream

from ludus_backend.rendering.tokenizer import FastTokenizer


class TextStream:
    """Feeds on ids, gives text that can be shown already.

    ``hold_from``: markers whose appearance ends what may be shown (stop strings, ``<tool_call>``), and of which not
    even a beginning is shown. What was held back and does belong to the reply comes with :meth:`finish`.
    """

    def __init__(self, tokenizer: FastTokenizer, hold_from: Sequence[str], stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=False)
        self._markers = [marker for marker in hold_from if marker]
        self._stop_ids = set(stop_ids)
        self._waiting: list[int] = []
        self._text = ""
        self._shown = 0

    def feed(self, ids: Sequence[int]) -> str:
        """The text that became certain with these ids, often ``""``."""
        for token_id in ids:
            self._waiting.append(token_id)
            if token_id not in self._stop_ids:
                for certain in self._waiting:
                    self._text += self._stream.step(self._tokenizer.backend, certain) or ""
                self._waiting.clear()
        until = max(self._certain(), self._shown)
        shown = self._text[self._shown : until]
        self._shown = until
        return shown

    def finish(self, text: str) -> str:
        """What is missing from ``text``, the reply's whole and final content."""
        missing = text[self._shown :]
        self._shown = len(text)
        return missing

    def _certain(self) -> int:
        end = len(self._text)
        for marker in self._markers:
            found = self._text.find(marker, self._shown)
            if found >= 0:
                end = min(end, found)
                continue
            for length in range(min(len(marker) - 1, len(self._text)), 0, -1):
                if self._text.endswith(marker[:length]):
                    end = min(end, len(self._text) - length)
                    break
        # White space at the seam of text and tool call is not content.
        return len(self._text[:end].rstrip()) if self._markers else end
