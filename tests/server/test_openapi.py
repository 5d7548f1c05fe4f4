"""/openapi.json describes the routes, and no request made from it is answered with a 5xx."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.server.wire import ask, fake_app
from tests.unit.api.fakes import always

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")


def document() -> dict[str, Any]:
    return ask(fake_app(always("x")), "GET", "/openapi.json").json()  # type: ignore[no-any-return]


def test_every_operation_tells_its_errors_and_needs_no_other_part() -> None:
    operations = [op for path in document()["paths"].values() for op in path.values()]
    assert all({"4XX", "5XX"} <= set(op["responses"]) for op in operations)
    assert "$ref" not in str(document())


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", sorted(document()["paths"]))
def test_no_request_made_from_the_document_is_a_5xx(path: str, mode: str) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", fake_app(always("x")))
    for operation in (found.ok() for found in schema.get_all_operations()):
        if operation.path == path:
            _check(operation, schemathesis.GenerationMode(mode))


def _check(operation: Any, mode: Any) -> None:
    """Bodies that fit the schema, or that break it, as the mode says."""

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=20,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            response = case.call()
        assert response.status_code < 500, response.text

    if mode is schemathesis.GenerationMode.POSITIVE or operation.body:
        check()
