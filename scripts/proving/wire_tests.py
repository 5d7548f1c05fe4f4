"""What is promised of the bytes on the wire, and held by tests."""

from __future__ import annotations

from collections.abc import Iterator

from scripts.proving.rows import Paths, Row, suite_row


def wire(paths: Paths) -> Iterator[Row]:
    """The official client, golden transcripts, random requests made from the OpenAPI document."""
    yield suite_row(
        "official openai client, its suite", "all pass", "tests/server/test_openai_client.py"
    )
    yield suite_row("golden transcripts", "byte for byte", "tests/server/test_golden.py")
    yield suite_row("schemathesis on /openapi.json", "no 5xx", "tests/server/test_openapi.py")
