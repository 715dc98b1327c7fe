"""An API server behind a proxy, which the environment names: it is looked up once, not before every request."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from kubernetes.aio.client.configuration import Configuration

from bert_operator.cluster.client import ApiClient, proxy_of
from http_stand_in import Server

BEHIND = "http://cluster.invalid:8080"


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


def ask(host: str, server: Server, *, token: str | None = None) -> None:
    """Read pods, from a server that has some at its own address and as a proxy."""
    server.files["/api/v1/pods"] = server.files[f"{BEHIND}/api/v1/pods"] = b'{"kind": "PodList", "items": []}'

    async def run() -> None:
        key = {"BearerToken": token} if token else None
        async with ApiClient(Configuration(host=host, api_key=key)) as api:
            assert (await api.get("/api/v1/pods"))["items"] == []

    asyncio.run(run())


def test_requests_take_the_proxy_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        monkeypatch.setenv("http_proxy", server.url)
        ask(BEHIND, server)
        assert [path for path, _ in server.requests] == [f"{BEHIND}/api/v1/pods"]


def test_an_address_that_no_proxy_names_is_reached_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nothing listens
        monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
        ask(server.url, server)
        assert [path for path, _ in server.requests] == ["/api/v1/pods"]


def test_the_proxy_is_that_of_the_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert proxy_of("https://10.96.0.1:443") == "http://proxy.example:3128"
    assert proxy_of("http://10.96.0.1:80") is None


def test_passwords_in_the_home_folder_do_not_get_in_the_way_of_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A request with both is refused by the library.
    (tmp_path / "netrc").write_text("default login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with Server() as server:
        ask(server.url, server, token="the-token")
        assert len(server.requests) == 1
