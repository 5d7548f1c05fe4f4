"""`octavo run-batch`: every line gets one result, whatever the lines are and however often the run is interrupted."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.batch_files import Results, count_lines, read_lines
from octavo.errors import InvalidRequest
from octavo.server.batch import BadLine, parse_line
from tests.cases import octavo_process
from tests.unit.cli.conftest import Octavo

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]


def request(custom_id: str, url: str = COMPLETIONS, **body: Any) -> str:
    """One line of the input."""
    fields = {"prompt": custom_id, "max_tokens": 4, "temperature": 0} | body
    if url == CHAT:
        del fields["prompt"]
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": fields})


def results_of(path: Path) -> list[dict[str, Any]]:
    """The results, which must be whole lines of the format."""
    data = path.read_bytes()
    assert data.endswith(b"\n")
    results = [json.loads(line) for line in data.splitlines()]
    assert all(set(result) == {"id", "custom_id", "response", "error"} for result in results)
    assert len({result["id"] for result in results}) == len(results)
    return results


def texts_of(path: Path) -> dict[str, str]:
    """The text of each good answer by custom id."""
    return {
        r["custom_id"]: r["response"]["body"]["choices"][0].get("text")
        for r in results_of(path)
        if r["response"] and r["response"]["status_code"] == 200
    }


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def test_both_routes_are_answered_as_by_the_server(
    octavo: Octavo, tiny: str, files: tuple[Path, Path]
) -> None:
    source, out = files
    lines = [request("a", prompt="x", logprobs=1, n=2, seed=1), request("b", CHAT, messages=HI)]
    source.write_text("\n".join(lines))  # the last line has no line break
    done = octavo("run-batch", str(source), "-o", str(out), tiny)
    assert (done.code, done.out) == (0, "")
    assert "2 answered, 0 of them errors" in done.err
    by_id = {result["custom_id"]: result for result in results_of(out)}
    completion, chat = by_id["a"]["response"], by_id["b"]["response"]
    assert completion["status_code"] == chat["status_code"] == 200
    assert completion["body"]["object"] == "text_completion"
    assert completion["body"]["id"] == completion["request_id"]
    assert len(completion["body"]["choices"]) == 2
    assert chat["body"]["object"] == "chat.completion"
    assert chat["body"]["choices"][0]["message"]["role"] == "assistant"
    assert chat["body"]["usage"]["completion_tokens"] <= 4
    assert by_id["a"]["error"] is None


def test_a_bad_line_is_an_error_in_its_line_and_stops_nothing(
    octavo: Octavo, tiny: str, files: tuple[Path, Path]
) -> None:
    source, out = files
    lines = [
        "not json",
        "",
        json.dumps({"custom_id": "no-body", "url": CHAT}),
        json.dumps({"custom_id": 7, "url": CHAT, "body": {}}),
        request("embed", "/v1/embeddings"),
        request("get").replace('"POST"', '"GET"'),
        request("twice"),
        request("twice"),
        request("hot", temperature=-1),
        request("streamed", stream=True),
        request("other", model="nope"),
        request("body").replace(json.loads(request("body"))["body"]["prompt"], "body"),
        json.dumps({"custom_id": "null", "url": CHAT, "body": None}),
        "[" * 100_000,
        request("good"),
    ]
    source.write_text("\n".join(lines) + "\n")
    # vLLM's spelling
    args = ("run-batch", "-i", str(source), "-o", str(out), "--model", tiny)
    assert octavo(*args).code == 0
    refused = {r["error"]["line"]: r for r in results_of(out) if r["error"]}
    assert {number: r["error"]["code"] for number, r in refused.items()} == {
        1: "invalid_line", 3: "invalid_line", 4: "invalid_line", 5: "invalid_url", 6: "invalid_method",
        8: "duplicate_custom_id", 14: "invalid_line",
    }  # fmt: skip
    assert [refused[n]["custom_id"] for n in (3, 5, 8)] == ["no-body", "embed", "twice"]
    assert all(r["response"] is None for r in refused.values())
    answers = {r["custom_id"]: r["response"] for r in results_of(out) if r["response"]}
    assert {name: answer["status_code"] for name, answer in answers.items()} == {
        "twice": 200, "hot": 400, "streamed": 400, "other": 404, "body": 200, "null": 400, "good": 200,
    }  # fmt: skip
    assert answers["hot"]["body"]["error"]["param"] == "temperature"
    before = out.read_bytes()
    again = octavo(*args)
    assert "0 answered" in again.err
    assert out.read_bytes() == before


def test_a_run_goes_on_where_the_last_one_ended(
    octavo: Octavo, tiny: str, files: tuple[Path, Path]
) -> None:
    source, out = files
    source.write_text("".join(request(f"r{i}", seed=i) + "\n" for i in range(9)))
    assert octavo("run-batch", str(source), tiny, "-o", str(out)).code == 0
    whole = texts_of(out)
    assert len(whole) == 9
    kept = b"".join(out.read_bytes().splitlines(keepends=True)[:4])
    out.write_bytes(kept + b'{"id":"batch_req_1","custom_id":"r')
    again = octavo("run-batch", str(source), tiny, "-o", str(out))
    assert "4 results are there already" in again.err
    assert "5 answered" in again.err
    assert out.read_bytes().startswith(kept)
    assert texts_of(out) == whole
    assert len(results_of(out)) == 9


@pytest.mark.parametrize("operands", [(), ("m",), ("a", "b", "c")])
def test_a_file_and_a_model_are_needed(octavo: Octavo, operands: tuple[str, ...]) -> None:
    result = octavo("run-batch", *operands, "-o", "out.jsonl")
    assert result.code == 2
    assert not Path("out.jsonl").exists()


def test_files_that_cannot_be_are_told_before_the_model_is_loaded(
    octavo: Octavo, files: tuple[Path, Path]
) -> None:
    source, out = files
    assert octavo("run-batch", str(source), "no-model", "-o", str(out)).code == 1
    assert not out.exists()
    source.write_text(request("a"))
    out.write_text("dear diary\n")
    refused = octavo("run-batch", str(source), "no-model", "-o", str(out))
    assert refused.code == 1
    assert "line 1 is no result of a batch" in refused.err
    assert out.read_text() == "dear diary\n"
    assert octavo("run-batch", str(source), "no-model", "-o", str(source)).code == 2


def test_ctrl_c_leaves_whole_lines_and_the_rest_for_later(tiny: str, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(request(f"r{i}", max_tokens=900) + "\n" for i in range(3000)))
    with octavo_process.start("run-batch", source, tiny, "-o", out, "--max-num-seqs", "4") as run:
        deadline = time.monotonic() + 20
        while not (out.exists() and out.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(run.pid, signal.SIGINT)
        code, _, err = octavo_process.finish(run, 10)
    assert code == 130, err
    assert "interrupted: the same command goes on from here" in err
    assert 0 < len(results_of(out)) < 3000


def test_long_lines_cost_no_memory_and_numbers_stay_right(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"a\n" + b"x" * 1000 + b"\n\nb\n" + b"y" * 50)
    lines = list(read_lines(source, 10))
    assert lines == [(1, b"a\n"), (2, b"x" * 11), (4, b"b\n"), (5, b"y" * 11)]
    assert count_lines(source) == 5
    with pytest.raises(BadLine, match="larger"):
        parse_line(b" " * (17 * 2**20))


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out.jsonl"
    with Results(out) as results:
        results.append(b'{"custom_id":"a"}\n')
        real = os.write

        def fills_up(fd: int, data: Any) -> int:
            if len(data) < 18:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, bytes(data)[:5])

        monkeypatch.setattr(os, "write", fills_up)
        with pytest.raises(OSError, match="No space"):
            results.append(b'{"custom_id":"b"}\n')
        monkeypatch.undo()
        results.append(b'{"custom_id":"c"}\n')
    assert out.read_bytes() == b'{"custom_id":"a"}\n{"custom_id":"c"}\n'
    with Results(out) as again:
        assert (again.num_lines, len(again.answered)) == (2, 2)
    out.write_bytes(b"[]\n")
    with pytest.raises(InvalidRequest):
        Results(out)
