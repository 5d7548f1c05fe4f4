"""Keys, tenants and their limits; hosts and origins; TLS."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from octavo.api.processor import RequestOptions
from octavo.errors import InvalidRequest
from octavo.params import SamplingParams
from octavo.server.config import CacheIsolation, SecurityConfig
from octavo.server.errors import ApiError
from octavo.server.keys import Bucket, Caller, KeyEntry, read_keys
from octavo.server.security import (
    host_name,
    is_loopback,
    resolve_access,
    warning,
)
from tests.server.wire import ask, error_of, fake_app, post, send
from tests.unit.api.fakes import WORLD, FakeClient, always, token

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HI = {"messages": [{"role": "user", "content": "Hi"}]}
ALICE, BOB = "alice-0123456789abcdef", "bob-0123456789abcdef"
KEYS = f"""
[[keys]]
name = "alice"
tenant = "a"
key = "{ALICE}"
max_tokens = 20
priority_floor = 5

[[keys]]
name = "bob"
sha256 = "{hashlib.sha256(BOB.encode()).hexdigest()}"
is_admin = true
"""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def keyed(
    tmp_path: Path, script: Any = None, *, keys: str = KEYS, **options: Any
) -> tuple[FastAPI, FakeClient]:
    path = tmp_path / "keys.toml"
    path.write_text(keys)
    client = FakeClient(script or always("x"))
    security = SecurityConfig(api_keys_file=str(path), **options)
    return fake_app(client, security=security), client


def test_a_key_of_the_file_says_whose_request_it_is(tmp_path: Path) -> None:
    app, client = keyed(tmp_path)
    assert post(app, CHAT, HI, headers=bearer(ALICE)).status_code == 200
    assert post(app, CHAT, HI, headers={"x-api-key": BOB}).status_code == 200
    assert [request.tenant for request in client.requests] == ["a", "bob"]
    for wrong in ("", ALICE[:-1], ALICE + "x", "\xe4" * 20):
        sent = {"authorization": f"Bearer {wrong}".encode("latin-1")}
        response = post(app, CHAT, HI, headers=sent)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"


def test_the_key_of_the_environment_works_beside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    client = FakeClient(always("x"))
    app = fake_app(client, api_key="s3cret", security=SecurityConfig(api_keys_file=str(path)))
    assert post(app, CHAT, HI, headers=bearer("s3cret")).status_code == 200
    assert post(app, CHAT, HI, headers=bearer(ALICE)).status_code == 200
    assert [request.tenant for request in client.requests] == ["", "a"]


def test_a_key_limits_max_tokens_and_priority_and_says_so(tmp_path: Path) -> None:
    app, client = keyed(tmp_path, token(WORLD))
    error = error_of(post(app, CHAT, {**HI, "max_tokens": 21}, headers=bearer(ALICE)))
    assert error["param"] == "max_tokens"
    raised = "priority -3 became 5, the most urgent that this key allows"
    for path, body, expected in (
        (CHAT, {**HI, "max_completion_tokens": 20, "priority": -3}, raised),
        (CHAT, {**HI, "priority": 9}, None),
        (COMPLETIONS, {"prompt": "x"}, None),
        (COMPLETIONS, {"prompt": "x", "priority": 4, "max_tokens": 1, "x": 1},
         "ignored unknown fields: x; priority 4 became 5, the most urgent that this key allows"),
    ):  # fmt: skip
        answer = post(app, path, body, headers=bearer(ALICE))
        assert answer.headers.get("x-octavo-warning") == expected
    assert [r.params.max_tokens for r in client.requests] == [20, 20, 16, 1]
    assert [r.priority for r in client.requests] == [5, 9, 5, 5]


def test_explain_answers_the_same_tenant_only(tmp_path: Path) -> None:
    app, _ = keyed(tmp_path)
    request_id = post(app, CHAT, HI, headers=bearer(ALICE)).headers["x-request-id"]
    path = f"/v1/requests/{request_id}/explain"
    assert ask(app, "GET", path, headers=bearer(ALICE)).status_code == 200
    error = error_of(ask(app, "GET", path, headers=bearer(BOB)), 404)
    assert error["code"] == "request_not_found"


def test_only_an_admin_forgets_what_all_have_stored(tmp_path: Path) -> None:
    app, _ = keyed(tmp_path)
    assert error_of(post(app, "/reset_prefix_cache", headers=bearer(ALICE)), 403)
    assert post(app, "/reset_prefix_cache", headers=bearer(BOB)).status_code == 200


def test_metrics_need_a_key_unless_told_otherwise(tmp_path: Path) -> None:
    app, _ = keyed(tmp_path)
    assert ask(app, "GET", "/metrics").status_code == 401
    assert ask(app, "GET", "/metrics", headers=bearer(ALICE)).status_code == 200
    open_, _ = keyed(tmp_path, metrics_without_key=True)
    assert ask(open_, "GET", "/metrics").status_code == 200
    assert ask(open_, "GET", "/v1/models").status_code == 401


def test_requests_beyond_the_limit_of_a_key_get_429(tmp_path: Path) -> None:
    keys = KEYS + "requests_per_minute = 2\n"
    app, client = keyed(tmp_path, keys=keys)
    codes = [post(app, CHAT, HI, headers=bearer(BOB)).status_code for _ in range(2)]
    assert codes == [200, 200]
    response = post(app, CHAT, HI, headers=bearer(BOB))
    assert error_of(response, 429)["code"] == "requests_per_minute"
    assert 25 <= int(response.headers["retry-after"]) <= 30
    assert post(app, CHAT, HI, headers=bearer(ALICE)).status_code == 200
    assert len(client.requests) == 3
    metrics = ask(app, "GET", "/metrics", headers=bearer(BOB)).text
    assert 'reason="requests_per_minute"} 1.0' in metrics


def test_prompts_and_answers_count_as_tokens(tmp_path: Path) -> None:
    app, _ = keyed(tmp_path, token(WORLD), keys=KEYS + "tokens_per_minute = 60\n")
    body = {"prompt": "x" * 30, "max_tokens": 60}
    assert post(app, COMPLETIONS, body, headers=bearer(BOB)).status_code == 200
    response = post(app, COMPLETIONS, body, headers=bearer(BOB))
    assert error_of(response, 429)["code"] == "tokens_per_minute"
    assert 29 <= int(response.headers["retry-after"]) <= 31  # 90 of 60 were used


def test_requests_that_run_together_are_limited(tmp_path: Path) -> None:
    app, client = keyed(tmp_path, token(WORLD), keys=KEYS + "max_concurrent_requests = 2\n")

    async def main() -> list[int]:
        body = {"prompt": "x", "max_tokens": 50}
        sent = [send(app, "POST", COMPLETIONS, body, headers=bearer(BOB)) for _ in range(4)]
        codes = [response.status_code for response in await asyncio.gather(*sent)]
        codes.append((await send(app, "POST", COMPLETIONS, body, headers=bearer(BOB))).status_code)
        return codes

    codes = asyncio.run(main())
    assert sorted(codes[:4]) == [200, 200, 429, 429]
    assert codes[4] == 200
    assert len(client.requests) == 3


def test_isolation_puts_the_tenant_into_the_salt(tmp_path: Path) -> None:
    app, client = keyed(tmp_path, cache_isolation=CacheIsolation.TENANT)
    for key, salt in ((ALICE, None), (BOB, None), (ALICE, "s"), (BOB, "s"), (ALICE, None)):
        post(app, CHAT, {**HI, "cache_salt": salt}, headers=bearer(key))
    salts = [request.cache_salt for request in client.requests]
    assert salts[0] == salts[4]
    assert len(set(salts)) == 4
    with pytest.raises(InvalidRequest, match="api-keys-file"):
        resolve_access(SecurityConfig(cache_isolation=CacheIsolation.TENANT), "127.0.0.1")


def test_no_key_is_kept_or_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    app, _ = keyed(tmp_path)
    post(app, CHAT, HI, headers=bearer(ALICE))
    post(app, CHAT, HI, headers=bearer(ALICE + "x"))
    assert ALICE not in caplog.text
    assert ALICE not in repr(app.state.server.access)
    assert ALICE not in repr([vars_of(c) for _, c in app.state.server.access.keys._callers])


def vars_of(caller: Caller) -> KeyEntry:
    return caller.entry


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "keys"),
        ("keys = []", r"no \[\[keys\]\]"),
        ("secret-key-of-mine", "not TOML"),
        ("[[keys]]\nname='a'", "either key or sha256"),
        ("[[keys]]\nname='a'\nkey='short'", "at least 16"),
        ("[[keys]]\nname='a'\nsha256='12'", "64 hex digits"),
        ("[[keys]]\nname='a b'\nkey='0123456789abcdef'", "letters"),
        ("[[keys]]\nname='a'\nkey='0123456789abcdef'\nmax_tokens=0", "at least 1"),
        ("[[keys]]\nname='a'\nkey='0123456789abcdef'\nrate=1", "rate"),
        ("[[keys]]\nname='a'\nkey='0123456789abcdef'\n[[keys]]\nname='b'\nkey='0123456789abcdef'",
         "the same"),
    ],
)  # fmt: skip
def test_a_bad_keys_file_says_what_is_wrong_but_no_key(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=reason) as caught:
        read_keys(path)
    assert caught.value.param == "api_keys_file"
    assert "0123456789abcdef" not in caught.value.message
    assert "secret-key" not in caught.value.message


def test_a_missing_keys_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"nothing\.toml"):
        read_keys(tmp_path / "nothing.toml")


def test_a_bucket_fills_with_time_and_may_be_overdrawn() -> None:
    now = [0.0]
    bucket = Bucket(60, lambda: now[0])
    assert bucket.wait_s(60) == 0
    bucket.take(90)
    assert bucket.wait_s(1) == 31
    now[0] = 31.0
    assert bucket.wait_s(1) == 0
    now[0] = 1e6
    assert bucket.wait_s(1000) == 0  # more than it holds: as much as it holds is enough


def test_a_refused_request_uses_nothing_up() -> None:
    caller = Caller(
        KeyEntry(name="a", requests_per_minute=5, max_concurrent_requests=1), clock=lambda: 0.0
    )
    caller.admit()
    for _ in range(9):
        with pytest.raises(ApiError):
            caller.admit()
    for _ in range(4):
        caller.leave()
        caller.admit()
    assert caller.num_running == 1
    assert caller.options(RequestOptions(), SamplingParams()).tenant == "a"


LOCAL: dict[str, Any] = {"host": "127.0.0.1"}


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "[::1]:8000", "127.0.0.1:8000", "127.1.2.3", "a.localhost:1", "localhost."])  # fmt: skip
def test_names_of_this_machine_are_answered(host: str) -> None:
    app = fake_app(always("x"), **LOCAL)
    assert post(app, CHAT, HI, headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "127.0.0.1.evil.example", "[::2]:80"])  # fmt: skip
def test_a_page_that_rebinds_its_name_to_us_gets_nothing(host: str) -> None:
    app = fake_app(always("x"), **LOCAL)
    for method, path in (("POST", CHAT), ("GET", "/health"), ("GET", "/v1/models")):
        error = error_of(ask(app, method, path, HI, headers={"host": host}), 403)
        assert error["code"] == "host_not_allowed"
    named = SecurityConfig(allowed_hosts=("evil.example", "[::2]", ""))
    if host_name(host) == "evil.example":
        app = fake_app(always("x"), security=named, **LOCAL)
        assert post(app, CHAT, HI, headers={"host": host}).status_code == 200


def test_with_a_key_or_on_another_address_any_name_is_answered() -> None:
    sent = {"host": "llm.example", **bearer("s3cret")}
    assert post(fake_app(always("x"), api_key="s3cret", **LOCAL), CHAT, HI, headers=sent).is_success
    assert post(fake_app(always("x")), CHAT, HI, headers=sent).is_success


def preflight(app: FastAPI, origin: str) -> Any:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    return ask(app, "OPTIONS", CHAT, headers=headers)


def test_pages_of_others_get_no_answer() -> None:
    app = fake_app(always("x"))
    evil = {"origin": "https://evil.example"}
    assert error_of(post(app, CHAT, HI, headers=evil), 403)["code"] == "origin_not_allowed"
    assert error_of(post(app, CHAT, HI, headers={"origin": "null"}), 403)
    assert "access-control-allow-origin" not in ask(app, "GET", "/v1/models", headers=evil).headers
    assert "access-control-allow-origin" not in preflight(app, "https://evil.example").headers
    own = {"origin": "http://localhost"}
    assert post(app, CHAT, HI, headers=own).status_code == 200


def test_pages_of_listed_origins_are_answered() -> None:
    security = SecurityConfig(allowed_origins=("https://app.example",))
    app = fake_app(always("x"), api_key="s3cret", security=security)
    asked = preflight(app, "https://app.example")
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in asked.headers["access-control-allow-headers"].lower()
    sent = {"origin": "https://app.example", **bearer("s3cret")}
    answer = post(app, CHAT, HI, headers=sent)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = post(app, CHAT, HI, headers={"origin": "https://app.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in preflight(app, "https://evil.example").headers
    sent["origin"] = "https://evil.example"
    assert post(app, CHAT, HI, headers=sent).status_code == 403


def test_an_address_that_others_reach_gets_a_warning_without_a_key() -> None:
    open_ = resolve_access(SecurityConfig(), "0.0.0.0")
    text = warning(open_, "0.0.0.0")
    assert text is not None
    assert "OCTAVO_API_KEY" in text
    assert "\n" not in text
    assert warning(open_, "127.0.0.1") is None
    assert warning(resolve_access(SecurityConfig(), "0.0.0.0", "s3cret"), "0.0.0.0") is None
    assert [is_loopback(x) for x in ("::1", "127.0.0.9", "localhost", "10.0.0.1", "::")] == [
        True, True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"client_timeout": 0}, "client_timeout"),
        ({"client_timeout": float("nan")}, "client_timeout"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_body_bytes": 1}, "max_body_bytes"),
        ({"ssl_keyfile": "x"}, "ssl_certfile"),
        ({"allowed_origins": ("app.example",)}, "allowed_origins"),
        ({"allowed_origins": ("https://app.example/",)}, "allowed_origins"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SecurityConfig(**options)
    assert caught.value.param == param
