"""Cases of the area security that concern the server, and tenants that share a real model."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from octavo.api.async_llm import AsyncLLM
from octavo.errors import ModelError
from octavo.server.app import create_app
from octavo.server.config import CacheIsolation, SecurityConfig
from octavo.server.security import resolve_access
from tests.cases.served import CHAT, COMPLETIONS, HI, good
from tests.server.wire import ask, error_of, post

OPEN_PATHS = {"/", "/health", "/ready", "/version"}
KEY = "sesame-0123456789"
SCHEMAS: dict[str, Any] = {
    "deep": json.loads('{"properties":{"p":' * 45 + "{}" + "}}" * 45),
    "references": {
        "$defs": {
            f"L{i}": {"properties": {"a": {"$ref": f"#/$defs/L{i - 1}"}, "b": {"$ref": f"#/$defs/L{i - 1}"}}}
            for i in range(1, 21)
        }
    },
    "enum": {"enum": [str(i) for i in range(200_000)]},
    "any_of": {"anyOf": [{"const": i} for i in range(5000)]},
    "pattern": {"type": "string", "pattern": "(a{1,999}){1,999}"},
    "long": {"type": "string", "maxLength": 1_000_000_000},
    "optional": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(200)}},
}  # fmt: skip
PATTERNS = ("^(a+)+$", "(a|aa)+$", "(.*)*x", "([a-z]+)*[0-9]")


def again(
    app: FastAPI, security: SecurityConfig, *, host: str = "127.0.0.1", key: str | None = None
) -> FastAPI:
    """The same model behind other access."""
    return create_app(app.state.server.llm, access=resolve_access(security, host, key))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def with_schema(schema: Any) -> dict[str, Any]:
    named = {"name": "t", "strict": True, "schema": schema}
    return {**HI, "response_format": {"type": "json_schema", "json_schema": named}}


@pytest.mark.parametrize("name", SCHEMAS)
def test_sec_07_a_schema_that_explodes_is_refused_soon(smollm2: FastAPI, name: str) -> None:
    started = time.monotonic()
    response = post(smollm2, CHAT, with_schema(SCHEMAS[name]))
    error_of(response, 400)
    assert time.monotonic() - started < 5


def test_sec_08_patterns_that_backtrack_are_refused_soon(smollm2: FastAPI) -> None:
    started = time.monotonic()
    for pattern in PATTERNS:
        schema = {"properties": {"v": {"type": "string", "pattern": pattern}}}
        error_of(post(smollm2, CHAT, with_schema(schema)))
    assert time.monotonic() - started < 5


def test_sec_11_names_are_never_paths(smollm2: FastAPI) -> None:
    for method, path in (
        ("HEAD", "/api/blobs/sha256:../../../../etc/passwd"),
        ("POST", "/api/blobs/sha256:" + 64 * "0"),
        ("POST", "/api/create"),
        ("POST", "/api/show"),
        ("GET", "/v1/models/../../etc/passwd"),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd"),
        ("GET", "/v1/requests/..%2f..%2fetc%2fpasswd/explain"),
    ):
        response = ask(smollm2, method, path)
        assert response.status_code == 404
        assert "root:" not in response.text
    error_of(post(smollm2, CHAT, {**HI, "model": "/etc/passwd"}), 404)


def test_sec_16_and_17_nothing_is_loaded_by_a_request(smollm2: FastAPI, tmp_path: Path) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/api/pull", "/api/push"):
        error_of(post(smollm2, path, {"model": "127.0.0.1:1/x/y", "lora_path": "/etc"}), 404)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoModel": "evil.Model"}}')
    with pytest.raises(ModelError):
        AsyncLLM(tmp_path)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]", "2130706433", "localhost"])
def test_sec_10_an_image_url_is_not_fetched(smollm2: FastAPI, host: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        url = f"http://{host}:{listener.getsockname()[1]}/a.png"
        part = {"type": "image_url", "image_url": {"url": url}}
        error_of(post(smollm2, CHAT, {"messages": [{"role": "user", "content": [part]}]}))
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_sec_13_a_key_guards_every_route(smollm2: FastAPI) -> None:
    app = again(smollm2, SecurityConfig(), key=KEY)
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    assert len(routes) > 10
    for route in routes:
        path = route.path.replace("{model_id:path}", "x").replace("{request_id}", "x")
        spellings = [
            path + "/",
            "/" + path,
            path.upper(),
            path.replace("/", "/%2e/", 1),
            "/v1/.." + path,
        ]
        for method in route.methods:
            if path in OPEN_PATHS:
                assert ask(app, method, path).status_code == 200
                continue
            for spelled in (path, *spellings):
                for headers in ({}, bearer(KEY[:-1]), {"x-api-key": KEY + "x"}):
                    url = f"http://localhost{spelled}"  # else "//x" would be a host
                    assert ask(app, method, url, headers=headers).status_code == 401, spelled
    body = {**HI, "max_tokens": 1}
    for headers in (bearer(KEY), {"x-api-key": KEY}):
        good(post(app, CHAT, body, headers=headers))


def test_sec_14_pages_do_not_drive_a_local_server(smollm2: FastAPI) -> None:
    app = again(smollm2, SecurityConfig())
    body = {**HI, "max_tokens": 1}
    assert error_of(post(app, CHAT, body, headers={"host": "evil.example"}), 403)
    evil = {"origin": "https://evil.example"}
    refused = post(app, CHAT, body, headers=evil)
    assert error_of(refused, 403)
    asked = ask(app, "OPTIONS", CHAT, headers={**evil, "access-control-request-method": "POST"})
    for response in (refused, asked):
        assert "access-control-allow-origin" not in response.headers
    for host in ("localhost", "[::1]:8000", "127.0.0.1:8000"):
        good(post(app, CHAT, body, headers={"host": host}))


def test_a_tenant_cannot_measure_prefixes_of_another(smollm2: FastAPI, tmp_path: Path) -> None:
    keys = {name: f"{name}-0123456789abcdef" for name in ("one", "two", "three")}
    path = tmp_path / "keys.toml"
    path.write_text(
        "".join(f'[[keys]]\nname="{n}"\nkey="{k}"\ntenant="{n[0]}"\n' for n, k in keys.items())
    )
    # "two" and "three" are one tenant.
    body = {
        "prompt": "A prompt that nobody else has: " + "seven lions sleep. " * 20,
        "max_tokens": 1,
    }

    def cached(app: FastAPI, name: str) -> int:
        usage = good(post(app, COMPLETIONS, body, headers=bearer(keys[name])))["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    isolated = SecurityConfig(api_keys_file=str(path), cache_isolation=CacheIsolation.TENANT)
    app = again(smollm2, isolated)
    assert [cached(app, name) for name in ("one", "two")] == [0, 0]
    assert cached(app, "three") > 50
    assert cached(app, "one") > 50
    shared = again(smollm2, SecurityConfig(api_keys_file=str(path)))
    assert cached(shared, "one") == 0
    assert cached(shared, "two") > 50
