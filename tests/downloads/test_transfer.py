"""A file is fetched whole and as published, whatever the network does; or it is said what to put where."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bert_trainer.dataset.downloads.catalogue import Algorithm, Checksum, RemoteFile
from bert_trainer.dataset.downloads.transfer import Transfer
from bert_trainer.errors import InputError, Stopped, TrainerError
from http_stand_in import Answer, Server
from transfer_notes import Notes

CONTENT = random.Random(1).randbytes(1_000_000)
PATH = "/data/file.bin"


def remote(
    server: Server, content: bytes = CONTENT, *, size: bool = True, algorithm: Algorithm = "sha256"
) -> RemoteFile:
    checksum = Checksum(algorithm, hashlib.new(algorithm, content).hexdigest())
    return RemoteFile(server.url_of(PATH), "sub/file.bin", len(content) if size else None, checksum)


@pytest.mark.parametrize("algorithm", ["sha256", "sha1", "md5"])
def test_a_file_is_put_in_its_place_and_nothing_else(
    tmp_path: Path, server: Server, transfer: Transfer, algorithm: Algorithm
) -> None:
    server.files[PATH] = CONTENT
    path = transfer.fetch(remote(server, algorithm=algorithm), tmp_path)
    assert path == tmp_path / "sub" / "file.bin"
    assert path.read_bytes() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["file.bin"]


def test_what_is_there_and_right_is_not_fetched(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    target = tmp_path / "sub" / "file.bin"
    target.parent.mkdir()
    target.write_bytes(CONTENT)
    assert transfer.fetch(remote(server), tmp_path) == target
    assert server.requests == []


def test_what_is_there_and_wrong_is_not_touched(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    target = tmp_path / "sub" / "file.bin"
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with pytest.raises(InputError, match=r"file\.bin: there already, but has 4 bytes, 1000000 were published"):
        transfer.fetch(remote(server), tmp_path)
    assert target.read_bytes() == b"mine"


def test_broken_transfers_go_on_where_they_stopped(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.files[PATH] = CONTENT
    server.plans[PATH] = [Answer(breaks_after=300_000), Answer(breaks_after=1), Answer(breaks_after=200_000)]
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    ranges = [asked for _, asked in server.requests]
    assert ranges == [None, "bytes=300000-", "bytes=300001-", "bytes=500001-"]


def test_a_transfer_that_advances_is_never_given_up(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.files[PATH] = CONTENT
    server.plans[PATH] = [Answer(breaks_after=1)] * 20
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_later_run_goes_on_where_an_earlier_one_was_killed(
    tmp_path: Path, server: Server, transfer: Transfer
) -> None:
    server.files[PATH] = CONTENT

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Transfer(transfer.watcher, transfer.wait, check=stop).fetch(remote(server), tmp_path)
    (partial,) = (tmp_path / "sub").glob(".file.bin.*.partial")
    there = partial.stat().st_size
    assert 0 < there < len(CONTENT)
    assert not (tmp_path / "sub" / "file.bin").exists()
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == (PATH, f"bytes={there}-")


def test_a_whole_partial_file_is_only_verified(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.files[PATH] = CONTENT
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / ".file.bin.partial").write_bytes(CONTENT)
    (folder / ".file.bin.partial.version").write_text('"v1"')
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests == [(PATH, f"bytes={len(CONTENT)}-")]


def test_another_version_on_the_server_begins_anew(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.files[PATH] = CONTENT
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / ".file.bin.partial").write_bytes(b"old" * 1000)
    (folder / ".file.bin.partial.version").write_text('"v0"')
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    # If-Range let the server decide: it sent the whole.
    assert server.requests == [(PATH, "bytes=3000-")]


def test_without_a_mark_of_the_version_nothing_is_gone_on_with(
    tmp_path: Path, server: Server, transfer: Transfer
) -> None:
    server.files[PATH], server.tags[PATH] = CONTENT, ""
    server.plans[PATH] = [Answer(breaks_after=300_000)]
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, None]


@pytest.mark.parametrize("answer", [Answer(ignores_ranges=True), Answer(shifts_range=7)])
def test_servers_that_send_another_part_than_asked_for_do_no_harm(
    tmp_path: Path, server: Server, transfer: Transfer, answer: Answer
) -> None:
    server.files[PATH] = CONTENT
    server.plans[PATH] = [Answer(breaks_after=300_000), answer]
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_length_that_is_a_lie_is_seen(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.files[PATH] = CONTENT
    # It announces more than it sends, then less.
    server.plans[PATH] = [Answer(said_length=2_000_000)]
    with pytest.raises(InputError, match="the server's file has 2000000 bytes, 1000000 were published"):
        transfer.fetch(remote(server), tmp_path)
    # Where no size is published, asking for the rest shows that there is none, and the checksum decides.
    server.plans[PATH] = [Answer(said_length=2_000_000)]
    path = transfer.fetch(remote(server, size=False), tmp_path)
    assert path.read_bytes() == CONTENT
    path.unlink()
    server.plans[PATH] = [Answer(said_length=400_000)]
    with pytest.raises(InputError, match=r"has the SHA-256 [0-9a-f]{64}; published: [0-9a-f]{64}"):
        transfer.fetch(remote(server, size=False), tmp_path)
    assert list((tmp_path / "sub").iterdir()) == []


def test_other_content_than_published_is_refused_and_removed(
    tmp_path: Path, server: Server, transfer: Transfer
) -> None:
    server.files[PATH] = CONTENT[::-1]
    with pytest.raises(InputError, match="(?s)what came has the SHA-256 .*fetch it again"):
        transfer.fetch(remote(server), tmp_path)
    assert list((tmp_path / "sub").iterdir()) == []


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_dead_address_says_what_to_put_where(tmp_path: Path, server: Server, transfer: Transfer, status: int) -> None:
    server.plans[PATH] = [Answer(status=status)]
    file = remote(server)
    with pytest.raises(InputError) as caught:
        transfer.fetch(file, tmp_path)
    message = str(caught.value)
    assert f"{server.url_of(PATH)}: the server answers {status}" in message
    assert f"put file.bin, 1000000 bytes, SHA-256 {file.checksum.digest}" in message  # type: ignore[union-attr]
    assert f"at {tmp_path / 'sub' / 'file.bin'}" in message
    assert len(server.requests) == 1


def test_a_busy_server_is_asked_again_when_it_says(
    tmp_path: Path, server: Server, transfer: Transfer, notes: Notes
) -> None:
    server.files[PATH] = CONTENT
    server.plans[PATH] = [Answer(status=503, headers={"Retry-After": "17"}), Answer(status=429), Answer(status=500)]
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert notes.waits == [17.0, 3.0, 7.0]
    server.plans["/other"] = [Answer(status=503)] * 20
    with pytest.raises(TrainerError, match=r"given up after 6 tries \(503 Service Unavailable\)"):
        transfer.fetch(RemoteFile(server.url_of("/other"), "other"), tmp_path)


def test_a_server_that_is_not_there_is_named(tmp_path: Path, transfer: Transfer) -> None:
    with Server() as gone:
        url = gone.url_of(PATH)
    with pytest.raises(TrainerError, match=r"given up after 6 tries \(ConnectionRefusedError.*\n?.*put file\.bin"):
        transfer.fetch(RemoteFile(url, "file.bin"), tmp_path)


def test_redirections_are_followed(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.files["/new"] = CONTENT
    server.plans[PATH] = [Answer(status=302, headers={"Location": server.url_of("/new")})]
    server.plans["/new"] = [Answer(breaks_after=10_000)]
    server.plans[PATH].append(Answer(status=307, headers={"Location": "/new"}))
    assert transfer.fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.requests[-1] == ("/new", "bytes=10000-")


def test_endless_redirections_end(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.plans[PATH] = [Answer(status=302, headers={"Location": PATH})] * 100
    with pytest.raises(InputError, match="the server answers 302"):
        transfer.fetch(remote(server), tmp_path)


def test_a_login_page_is_no_file(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.plans[PATH] = [Answer(body=b"<html>sign in</html>", headers={"Content-Type": "text/html; charset=utf-8"})]
    with pytest.raises(InputError, match="the server answers with a web page"):
        transfer.fetch(RemoteFile(server.url_of(PATH), "file.bin"), tmp_path)


def test_without_a_published_checksum_the_computed_one_is_told(
    tmp_path: Path, server: Server, transfer: Transfer, notes: Notes
) -> None:
    server.files[PATH] = b"text"
    transfer.fetch(RemoteFile(server.url_of(PATH), "file.txt"), tmp_path)
    digest = hashlib.sha256(b"text").hexdigest()
    assert f"file.txt: no checksum is published; SHA-256 {digest}" in notes.lines


def test_whoever_waits_is_told_of_the_check_too(
    tmp_path: Path, server: Server, transfer: Transfer, notes: Notes
) -> None:
    content = b"text" * 1_000_000
    server.files[PATH] = content
    file = RemoteFile(server.url_of(PATH), "file.txt", checksum=Checksum("sha256", hashlib.sha256(content).hexdigest()))
    for _ in range(2):
        transfer.fetch(file, tmp_path)
    size = len(content)
    wanted = [("file.txt", size, 0), ("check file.txt", size, 0), ("check file.txt", size, 0)]
    assert notes.begun == wanted
    assert notes.num_bytes == 3 * size


def test_a_check_of_a_large_file_can_be_stopped(tmp_path: Path, notes: Notes) -> None:
    (tmp_path / "file.txt").write_bytes(b"text" * 1_000_000)
    checksum = Checksum("sha256", "0" * 64)

    def stop() -> None:
        raise Stopped("stop")

    with pytest.raises(Stopped):
        Transfer(notes, wait=lambda _: None, check=stop).fetch(
            RemoteFile("https://nowhere.example/file.txt", "file.txt", checksum=checksum), tmp_path
        )
    assert notes.num_bytes < 4_000_000


def test_proxies_of_the_environment_are_used(
    tmp_path: Path, server: Server, transfer: Transfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url_of(""))
    server.files["http://data.example/file.bin"] = CONTENT
    path = transfer.fetch(RemoteFile("http://data.example/file.bin", "file.bin"), tmp_path)
    assert path.read_bytes() == CONTENT


def test_an_empty_file_is_a_file(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    server.files[PATH] = b""
    assert transfer.fetch(remote(server, b""), tmp_path).read_bytes() == b""


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, server: Server, transfer: Transfer) -> None:
    (tmp_path / "sub").write_text("a file where the folder should be")
    with pytest.raises(InputError, match="sub: cannot be written"):
        transfer.fetch(remote(server), tmp_path)


BREAKS = st.lists(
    st.one_of(
        st.builds(Answer, breaks_after=st.integers(0, 5000)),
        st.builds(Answer, status=st.sampled_from([500, 502, 503, 429])),
        st.builds(Answer, ignores_ranges=st.just(True), breaks_after=st.integers(0, 5000)),
        st.builds(Answer, shifts_range=st.integers(1, 9)),
    ),
    max_size=5,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=5000), plan=BREAKS)
def test_any_row_of_failures_ends_with_the_right_file(
    tmp_path_factory: pytest.TempPathFactory, server: Server, transfer: Transfer, content: bytes, plan: list[Answer]
) -> None:
    server.files[PATH], server.plans[PATH] = content, list(plan)
    folder = tmp_path_factory.mktemp("any")
    assert transfer.fetch(remote(server, content), folder).read_bytes() == content
    assert [path.name for path in (folder / "sub").iterdir()] == ["file.bin"]
