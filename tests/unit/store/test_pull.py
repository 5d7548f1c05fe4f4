"""Pulling a model: the right bytes under their digest, or nothing and an error that says why."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import threading
from pathlib import Path

import httpx
import pytest

from octavo.errors import StoreError
from octavo.store.blobs import BlobStore
from octavo.store.catalog import (
    CatalogEntry,
    HubSource,
    PathSource,
    PypiSource,
    Source,
    WheelMember,
)
from octavo.store.manifest import list_models, read_manifest, remove_model, stored_path
from octavo.store.name import ModelName
from octavo.store.pull import PullContext, pull

from .fake_index import FakeIndex, serving

PARTS = (b"GGUF" + bytes(range(256)) * 300, b"tail" * 5000)
CONTENT = b"".join(PARTS)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
WHEELS = PypiSource(
    [WheelMember(f"tiny-part{i}", "1.0.0", f"tiny_part{i}/data/t.gguf.part0{i}") for i in (1, 2)]
)
NAME = ModelName.parse("tiny")


def entry(*sources: Source, sha256: str = DIGEST, size: int = len(CONTENT)) -> CatalogEntry:
    return CatalogEntry(
        "tiny", "A tiny model", "Apache-2.0", size, sha256, list(sources or (WHEELS,))
    )


@pytest.fixture
def index():
    fake = FakeIndex()
    for i, part in enumerate(PARTS, start=1):
        fake.add(
            f"tiny-part{i}",
            f"tiny_part{i}-0.9.0-py3-none-any.whl",
            {f"tiny_part{i}/data/t.gguf.part0{i}": b"old"},
        )
        fake.add(
            f"tiny-part{i}",
            f"tiny_part{i}-1.0.0-py3-none-any.whl",
            {f"tiny_part{i}/data/t.gguf.part0{i}": part},
        )
    with serving(fake):
        yield fake


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def context(tmp_path: Path, *urls: str, **kwargs: object) -> PullContext:
    environ = {
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": urls[0],
        "PIP_EXTRA_INDEX_URL": " ".join(urls[1:]),
    }
    return PullContext(
        variables={**environ, "XDG_CONFIG_HOME": str(tmp_path)},
        user_home=tmp_path,
        new_client=kwargs.pop(
            "new_client", lambda ca_file: httpx.Client(follow_redirects=True, trust_env=False)
        ),
        **kwargs,
    )


def assert_nothing_stored(home: Path) -> None:
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("as_json", [True, False])
def test_wheel_members_are_joined_verified_and_stored(
    index: FakeIndex, home: Path, tmp_path: Path, as_json: bool
) -> None:
    index.as_json = as_json
    seen: dict[str, tuple[int, int]] = {}
    pulled = pull(
        entry(),
        home,
        context=context(tmp_path, index.url),
        progress=lambda what, done, total: seen.update({what: (done, total)}),
    )
    assert pulled.path.read_bytes() == CONTENT
    assert pulled.path == home / "blobs" / f"sha256-{DIGEST}"
    assert stored_path(home, NAME) == pulled.path
    assert "tiny_part1-1.0.0-py3-none-any.whl of http://127.0.0.1" in pulled.manifest.source
    assert set(seen) == {f"tiny_part{i}-1.0.0-py3-none-any.whl" for i in (1, 2)}
    assert all(done == total > 0 for done, total in seen.values())
    assert len(list((home / "blobs").iterdir())) == 1


def test_a_stored_model_is_not_fetched_again(index: FakeIndex, home: Path, tmp_path: Path) -> None:
    pull(entry(), home, context=context(tmp_path, index.url))
    index.requests.clear()
    pull(entry(), home, context=context(tmp_path, index.url))
    assert index.requests == []


def test_credentials_are_used_and_never_shown(
    index: FakeIndex, home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    index.password = "s3cret"
    url = index.url.replace("http://", "http://user:s3cret@")
    pulled = pull(entry(), home, context=context(tmp_path, url))
    assert "s3cret" not in pulled.manifest.source
    assert "user" not in pulled.manifest.source
    wrong = index.url.replace("http://", "http://user:wr0ng@")
    with pytest.raises(StoreError, match="401") as caught:
        pull(entry(sha256="0" * 64), home, context=context(tmp_path, wrong))
    assert "wr0ng" not in str(caught.value)
    assert "s3cret" not in caplog.text
    assert "wr0ng" not in caplog.text


def test_a_missing_file_index_is_passed_over_and_a_present_one_is_used(
    home: Path, tmp_path: Path, index: FakeIndex
) -> None:
    for i in (1, 2):
        folder = tmp_path / "simple" / f"tiny-part{i}"
        folder.mkdir(parents=True)
        name = f"tiny_part{i}-1.0.0-py3-none-any.whl"
        (folder / name).write_bytes(index.wheels[f"tiny-part{i}"][name])
    missing, present = (tmp_path / "nothing").as_uri(), (tmp_path / "simple").as_uri()
    pulled = pull(entry(), home, context=context(tmp_path, missing, present))
    assert pulled.path.read_bytes() == CONTENT
    assert index.requests == []
    (tmp_path / "simple" / "tiny-part1" / "index.html").write_text(f'<a href="{name}">{name}</a>')


def test_the_second_index_is_asked_when_the_first_lacks_the_wheel(
    index: FakeIndex, home: Path, tmp_path: Path
) -> None:
    with serving(FakeIndex()) as empty:
        pulled = pull(entry(), home, context=context(tmp_path, empty.url, index.url))
    assert pulled.path.read_bytes() == CONTENT


def test_the_second_source_is_used_when_the_first_fails(
    index: FakeIndex, home: Path, tmp_path: Path
) -> None:
    source = PathSource(str(tmp_path / "absent.gguf"))
    pulled = pull(entry(source, WHEELS), home, context=context(tmp_path, index.url))
    assert pulled.manifest.source.startswith("tiny_part1")
    (tmp_path / "here.gguf").write_bytes(CONTENT)
    remove_model(home, NAME)
    local = pull(
        entry(PathSource(str(tmp_path / "here.gguf")), WHEELS),
        home,
        context=context(tmp_path, index.url),
    )
    assert local.manifest.source == str(tmp_path / "here.gguf")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "ab" * 32}, f"SHA-256 {DIGEST} instead of {'ab' * 32}"),
        ({"size": len(CONTENT) + 1}, f"{len(CONTENT)} bytes instead of {len(CONTENT) + 1}"),
        ({"size": len(CONTENT) - 1}, f"longer than the {len(CONTENT) - 1} bytes"),
    ],
)
def test_a_wrong_file_is_refused(
    index: FakeIndex, home: Path, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(StoreError, match=message):
        pull(entry(**change), home, context=context(tmp_path, index.url))
    assert_nothing_stored(home)


def test_a_wheel_other_than_the_index_says_is_refused(
    index: FakeIndex, home: Path, tmp_path: Path
) -> None:
    index.declared_sha256 = "cd" * 32
    with pytest.raises(StoreError, match=f"the index says {'cd' * 32}"):
        pull(entry(), home, context=context(tmp_path, index.url))
    assert_nothing_stored(home)


def test_a_download_that_breaks_off_is_refused(
    index: FakeIndex, home: Path, tmp_path: Path
) -> None:
    index.truncate = True
    with pytest.raises(StoreError, match="broke off"):
        pull(entry(), home, context=context(tmp_path, index.url))
    assert_nothing_stored(home)


def test_missing_wheel_member_and_network_are_named(
    index: FakeIndex, home: Path, tmp_path: Path
) -> None:
    where = context(tmp_path, index.url)
    with pytest.raises(StoreError, match=r"tiny-part1 7\.7\.7"):
        pull(entry(PypiSource([WheelMember("tiny-part1", "7.7.7", "x")])), home, context=where)
    with pytest.raises(StoreError, match="has no file x"):
        pull(entry(PypiSource([WheelMember("tiny-part1", "1.0.0", "x")])), home, context=where)
    with pytest.raises(StoreError, match="answered 404"):
        pull(entry(PypiSource([WheelMember("unknown", "1.0.0", "x")])), home, context=where)
    with pytest.raises(StoreError, match=r"no connection to http://127\.0\.0\.1:1/simple"):
        pull(entry(), home, context=context(tmp_path, "http://127.0.0.1:1/simple"))
    assert_nothing_stored(home)


class FullDisk(io.FileIO):
    def write(self, data: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_named_and_leaves_nothing(
    index: FakeIndex, home: Path, tmp_path: Path
) -> None:
    where = context(tmp_path, index.url, open_file=lambda path: FullDisk(path, "w"))
    with pytest.raises(StoreError, match="No space left on device") as caught:
        pull(entry(), home, context=where)
    assert str(home) in str(caught.value)
    assert_nothing_stored(home)


def test_too_little_space_is_noticed_before_the_download(
    index: FakeIndex, home: Path, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="bytes are needed"):
        pull(entry(size=1 << 60), home, context=context(tmp_path, index.url))
    assert index.requests == []


def test_a_home_that_cannot_be_written_is_named(index: FakeIndex, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    home = tmp_path / "file" / "home"
    with pytest.raises(StoreError, match="cannot write to") as caught:
        pull(entry(), home, context=context(tmp_path, index.url))
    assert str(home) in str(caught.value)


@pytest.mark.skipif(
    os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind the superuser"
)
def test_a_read_only_home_is_named(index: FakeIndex, home: Path, tmp_path: Path) -> None:
    home.mkdir(mode=0o500)
    with pytest.raises(StoreError, match="Permission denied"):
        pull(entry(), home, context=context(tmp_path, index.url))


def test_a_read_only_disk_is_named(index: FakeIndex, home: Path, tmp_path: Path) -> None:
    def refuse(path: Path) -> io.FileIO:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.raises(StoreError, match="Read-only file system") as caught:
        pull(entry(), home, context=context(tmp_path, index.url, open_file=refuse))
    assert str(home) in str(caught.value)
    assert_nothing_stored(home)


def test_pulls_at_the_same_time_agree(index: FakeIndex, home: Path, tmp_path: Path) -> None:
    paths: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: paths.append(
                pull(entry(), home, context=context(tmp_path, index.url)).path
            )
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 4
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert [path.name for path in (home / "blobs").iterdir()] == [f"sha256-{DIGEST}"]


def hub_client(announced: str, requests: list[httpx.Request]):
    def answer(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        if request.method == "HEAD":
            return httpx.Response(
                302, headers={"x-linked-etag": f'"{announced}"', "location": "https://elsewhere/"}
            )
        return httpx.Response(200, content=CONTENT)

    return lambda ca_file: httpx.Client(
        transport=httpx.MockTransport(answer), follow_redirects=True
    )


def test_a_file_of_the_hub_is_fetched(home: Path, tmp_path: Path) -> None:
    requests: list[httpx.Request] = []
    where = context(tmp_path, "http://unused", new_client=hub_client(DIGEST, requests))
    pulled = pull(entry(HubSource("owner/repo", "t.gguf")), home, context=where)
    assert pulled.path.read_bytes() == CONTENT
    assert str(requests[0].url) == "https://huggingface.co/owner/repo/resolve/main/t.gguf"


def test_another_file_on_the_hub_is_refused_before_the_download(home: Path, tmp_path: Path) -> None:
    requests: list[httpx.Request] = []
    where = context(tmp_path, "http://unused", new_client=hub_client("ef" * 32, requests))
    with pytest.raises(StoreError, match="SHA-256"):
        pull(entry(HubSource("owner/repo", "t.gguf")), home, context=where)
    assert [request.method for request in requests] == ["HEAD"]


def test_models_are_listed_and_removed_with_their_blob(
    index: FakeIndex, home: Path, tmp_path: Path
) -> None:
    pull(entry(), home, context=context(tmp_path, index.url))
    assert [manifest.name for manifest in list_models(home)] == ["tiny"]
    assert remove_model(home, NAME)
    assert not remove_model(home, NAME)
    assert list_models(home) == []
    assert_nothing_stored(home)


def test_a_damaged_store_counts_as_absent(index: FakeIndex, home: Path, tmp_path: Path) -> None:
    path = pull(entry(), home, context=context(tmp_path, index.url)).path
    path.write_bytes(CONTENT[:100])
    assert stored_path(home, NAME) is None
    assert pull(entry(), home, context=context(tmp_path, index.url)).path.read_bytes() == CONTENT
    (home / "manifests" / "tiny" / "latest").write_text("{")
    assert read_manifest(home, NAME) is None


def test_partial_files_of_dead_writers_are_removed(home: Path) -> None:
    (home / "blobs").mkdir(parents=True)
    old, new = home / "blobs" / "partial-old", home / "blobs" / "partial-new"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    BlobStore(home).remove_abandoned()
    assert not old.exists()
    assert new.exists()
