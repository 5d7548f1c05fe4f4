from __future__ import annotations

import json
import logging

import pytest

from octavo.errors import InvalidRequest
from octavo.observability.config import ObservabilityConfig
from octavo.observability.logs import LogFormat, log_fields, log_format_in_use, setup_logging

log = logging.getLogger("octavo.test")


def test_json_lines_hold_the_fields_and_stay_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", is_server=True, log_format=LogFormat.JSON)
    log.info("two\nlines, %s", "and \N{LLAMA}", extra=log_fields({"id": "r", "level": "mine"}))
    log.debug("not at this level")
    [line] = capsys.readouterr().err.splitlines()
    assert line.isascii()
    assert log_format_in_use() is LogFormat.JSON
    found = json.loads(line)
    assert found["message"] == "two\nlines, and \N{LLAMA}"
    assert (found["level"], found["logger"], found["id"]) == ("INFO", "octavo.test", "r")
    assert found["time"].endswith("Z")
    assert "T" in found["time"]


def test_an_exception_is_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info", is_server=True, log_format=LogFormat.JSON)
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    [line] = capsys.readouterr().err.splitlines()
    assert "ValueError: why" in json.loads(line)["exception"]


@pytest.mark.parametrize(
    ("is_server", "shown"), [(True, " INFO octavo.test: hi"), (False, "octavo: INFO: hi")]
)
def test_text_has_time_and_place_for_a_server(
    capsys: pytest.CaptureFixture[str], is_server: bool, shown: str
) -> None:
    setup_logging("INFO", is_server=is_server)
    assert log_format_in_use() is LogFormat.TEXT
    log.info("hi", extra=log_fields({"id": "r"}))
    assert capsys.readouterr().err.endswith(shown + "\n")


def test_unknown_levels_and_bad_endpoints_are_named() -> None:
    with pytest.raises(InvalidRequest, match="'loud' is not one of DEBUG"):
        setup_logging("loud", is_server=True)
    for endpoint in ("localhost:4318", "ftp://x", "http://"):
        with pytest.raises(InvalidRequest) as caught:
            ObservabilityConfig(otlp_traces_endpoint=endpoint)
        assert caught.value.param == "otlp_traces_endpoint"


def test_traces_without_opentelemetry_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.observability.config._NEEDED", ("no_such_package.sdk",))
    with pytest.raises(InvalidRequest, match=r"pip install 'octavo\[otel\]'"):
        ObservabilityConfig(otlp_traces_endpoint="http://localhost:4318/v1/traces")
