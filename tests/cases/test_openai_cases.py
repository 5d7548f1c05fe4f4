"""Cases of the OpenAI API that belong to no area of its own."""

from __future__ import annotations

import socket

import pytest
from fastapi import FastAPI

from tests.cases.served import CHAT, chat
from tests.server.wire import error_of, post


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/a.png",
        "http://localhost:{port}/redirect",
        "http://2130706433:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
    ],
)
def test_sec_10_a_picture_is_refused_and_never_fetched(smollm2: FastAPI, url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        part = {
            "type": "image_url",
            "image_url": {"url": url.format(port=listener.getsockname()[1])},
        }
        parts = [{"type": "text", "text": "What is this?"}, part]
        response = post(smollm2, CHAT, {"messages": [{"role": "user", "content": parts}]})
        error = error_of(response)
        assert error["param"] == "messages[0].content[1]"
        assert "text only" in error["message"]
        assert "root:" not in response.text
        with pytest.raises(TimeoutError):
            listener.accept()
    assert chat(smollm2, max_tokens=1)["usage"]["prompt_tokens"] == 31
