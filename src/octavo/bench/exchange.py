"""One streamed completion: the bytes a server sends -> a RequestRecord. Knows nothing of sockets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from octavo.bench.http import BadResponse, ResponseParser
from octavo.bench.sse import EventParser
from octavo.bench.stats import RequestRecord

_DONE: Final = b"[DONE]"
_MAX_ERROR_BYTES: Final = 400


class _Choice(msgspec.Struct):
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


_CHUNK: Final = msgspec.json.Decoder(_Chunk)


def _predicted_s(headers: Mapping[str, str]) -> float | None:
    """The time to the first token that an Octavo server predicted."""
    value = headers.get("x-octavo-predicted-ttft-ms", "")
    return int(value) / 1000 if value.isascii() and value.isdigit() else None


class Exchange:
    """The answer to one POST of /v1/completions with `stream`. `record` is complete once `is_done`."""

    def __init__(self, started_s: float) -> None:
        self.record = RequestRecord(started_s)
        self.is_done = False
        self._response = ResponseParser()
        self._events = EventParser()
        self._error_body = b""
        self._is_finished = False

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection can carry another request."""
        return self._response.keeps_alive

    def feed(self, data: bytes, now_s: float) -> None:
        """Take bytes that came in at `now_s`. Never raises: what is wrong becomes the record's error."""
        try:
            body = self._response.feed(data)
            if self._response.status == 200:
                for event in self._events.feed(body):
                    self._take(event, now_s)
            else:
                self._error_body += body
            if self._response.is_complete:
                self._end(now_s)
        except (BadResponse, msgspec.MsgspecError) as error:
            self.fail(f"bad response: {error}", now_s)

    def close(self, now_s: float) -> None:
        """The connection was closed by the server."""
        if self.is_done:
            return
        try:
            self._response.end()
            self._end(now_s)
        except BadResponse as error:
            self.fail(str(error), now_s)

    def fail(self, error: str, now_s: float) -> None:
        """End the request; the first error counts."""
        self.record.error = self.record.error or error
        self.record.ended_s = now_s
        self.is_done = True

    def _take(self, event: bytes, now_s: float) -> None:
        record = self.record
        if event == _DONE:
            record.ended_s = now_s
            return
        chunk = _CHUNK.decode(event)
        if chunk.error is not None:
            record.error = record.error or f"error in the stream: {_message_of(chunk.error)}"
        if chunk.usage is not None:
            usage, record.has_usage = chunk.usage, True
            details = usage.prompt_tokens_details
            record.prompt_tokens, record.completion_tokens = (
                usage.prompt_tokens,
                usage.completion_tokens,
            )
            record.cached_tokens = (details.cached_tokens if details else None) or 0
        for choice in chunk.choices or ():
            self._is_finished = self._is_finished or choice.finish_reason is not None
            if choice.text:
                self._take_text(now_s)

    def _take_text(self, now_s: float) -> None:
        record = self.record
        record.num_events += 1
        if record.num_events == 1:
            record.predicted_ttft_s = _predicted_s(self._response.headers)
        if record.first_s is None:
            record.first_s = now_s
        if record.last_s is not None:
            record.gaps_s.append(now_s - record.last_s)
        record.last_s = now_s

    def _end(self, now_s: float) -> None:
        record = self.record
        self.is_done = True
        if record.ended_s is None:
            record.ended_s = now_s
        if not record.has_usage:  # the best that can be said: one event is at least one token
            record.completion_tokens = record.num_events
        if self._response.status != 200:
            text = self._error_body[:_MAX_ERROR_BYTES].decode("utf-8", "replace")
            record.error = f"HTTP {self._response.status}: {_message_in(text)}"
        elif record.error is None and not self._is_finished:
            record.error = "the stream ended without a finish reason"


def _message_in(text: str) -> str:
    """The message of an OpenAI error body, or the body itself."""
    try:
        return _message_of(msgspec.json.decode(text, type=_Chunk).error or text)
    except msgspec.MsgspecError:
        return text


def _message_of(error: object) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
