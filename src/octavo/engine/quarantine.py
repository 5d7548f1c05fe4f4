"""Requests that stopped engines, kept for whoever looks into it."""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path

import msgspec

from octavo.messages import AddRequest

_logger = logging.getLogger(__name__)


def save_quarantined(
    message: AddRequest, tokens: list[list[int]], directory: Path | None
) -> Path | None:
    """Write a request, its prompt's token ids among it, to a file that only the user may read. None if it cannot be."""
    if directory is None:
        _logger.error("request %s stopped two engines: it is ended", message.request_id)
        return None
    name = re.sub(r"[^A-Za-z0-9_-]", "_", message.request_id[-40:])
    path = directory / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}.json"
    record = {
        "request_id": message.request_id,
        "prompt_token_ids": message.prompt_token_ids,
        "output_token_ids": tokens,
        "params": message.params,
        "priority": message.priority,
    }
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(record))
    except OSError as error:
        _logger.error(
            "request %s stopped two engines: it is ended, and cannot be kept in %s: %s",
            message.request_id,
            directory,
            error.strerror or error,
        )
        return None
    _logger.error(
        "request %s stopped two engines: it is ended, and kept in %s", message.request_id, path
    )
    return path
