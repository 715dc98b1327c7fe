"""A small client of the API server: JSON in, JSON out, one type of error.

Credentials and certificates are read by the official client (``kubernetes.aio``), whose models are not used: building
them takes ten times as long as the request. It does not retry: the work queue does, with a fresh plan.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

from bert_operator.cluster.server_clock import ServerClock
from bert_operator.json_text import read_json, write_json

Document = dict[str, Any]

CONNECT_TIMEOUT_S = 30.0
REQUEST_TIMEOUT_S = 65.0
"""A little more than the minute after which an API server gives up by itself."""
LOG_TIMEOUT_S = 10.0
"""Logs are proxied from a kubelet, which may hang; the next round asks again."""
MAX_PAUSE_S = 5.0
"""Between two attempts to watch: statuses shall be right 15 s after an API server is back, and logs are read by what
watches bring."""
MAX_REQUESTS = 32
"""Concurrent requests. Watches and logs do not count: others decide how long they stay open."""

MAX_BYTES = 2**24
"""Of one answer, and of one line of a watch. etcd takes 1.5 MiB, of which the API server writes a sign such as ``<`` as
six bytes. Beyond it an answer is refused before it is parsed, which takes ten times as much memory."""
TOO_LARGE = "TooLarge"
"""Reason of an answer that is refused for its size."""
_BUFFER_BYTES = 2**18
"""Of one connection. aiohttp's own is a quarter, in which large lists come in many parts."""

_BROKEN = (aiohttp.ClientError, aiohttp.http_exceptions.HttpProcessingError)
"""What aiohttp raises where a connection or its bytes are not as they should be; the second is no ClientError."""

_log = logging.getLogger(__name__)

_JSON = "application/json"
_MERGE_PATCH = "application/merge-patch+json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiError(Exception):
    """The API server refused, or could not be reached (status 0)."""

    def __init__(self, status: int, reason: str, message: str, retry_after_s: float | None = None) -> None:
        """Take an error response.

        Args:
            status: Of HTTP; 0 without a response.
            reason: Kubernetes' reason, such as AlreadyExists: 409 alone may also be a conflict.
            message: For people.
            retry_after_s: From the header of the same name.
        """
        super().__init__(f"{status or 'no answer'} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s


class _Request(NamedTuple):
    """An HTTP request to the API server."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = MappingProxyType({})
    content: str = _JSON
    accept: str = _JSON


class ApiClient:
    """A connection pool to one API server; an asynchronous context manager."""

    def __init__(self, configuration: Configuration) -> None:
        """Take a configuration as ``load_configuration`` returns it."""
        # The official client reads certificates. Requests go past it: it would look for retries, patches of other kinds
        # and the parts of an address each time.
        tls = RESTClientObject(configuration).ssl_context
        # No limit: watches keep a connection each for minutes, and MAX_REQUESTS bounds everything else.
        # While all shared a pool of 32, the watches of eight namespaces left requests no connection, and the operator
        # never became ready.
        connector = aiohttp.TCPConnector(limit=0, ssl=tls)
        # By default aiohttp looks for a proxy and for ~/.netrc before every request, each in a thread: a quarter of all
        # processor time while a thousand jobs were created. A process's environment does not change.
        self._session = aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=configuration.proxy or proxy_of(configuration.host),
            read_bufsize=_BUFFER_BYTES,
        )
        self._proxy_headers, self._tls_name = configuration.proxy_headers, configuration.tls_server_name
        self._host = configuration.host
        self._configuration = configuration
        self._request_slots = asyncio.Semaphore(MAX_REQUESTS)
        self._clock = ServerClock()

    async def __aenter__(self) -> ApiClient:
        """Enter; the pool opens connections as they are needed."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections."""
        await self._session.close()

    def now_s(self) -> float:
        """Return the time by the API server's clock, in seconds since 1970."""
        return self._clock.now_s()

    async def get(self, path: str, **query: str) -> Document:
        """Return an object or a list. Raises ApiError."""
        return await self._request(_Request("GET", path, query=query))

    async def pages(
        self, path: str, limit: int, query: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Document, None]:
        """Yield a list page by page; a page can be freed before the next one is requested.

        Nothing is held between two pages, so that a caller may leave at any time.

        Args:
            path: Of the collection.
            limit: Most objects of a page; fewer where so many are more than ``MAX_BYTES``.
            query: Besides, such as selectors.

        Raises:
            ApiError: as for any request; 410 where a list took too long.
        """
        resume = ""
        while True:
            given = {**(query or {}), "limit": str(limit), **({"continue": resume} if resume else {})}
            try:
                page = await self._request(_Request("GET", path, query=given))
            except ApiError as error:
                if error.reason != TOO_LARGE or limit == 1:
                    raise
                limit //= 2
                continue
            resume = page["metadata"].get("continue") or ""
            yield page
            del page
            if not resume:
                return

    async def get_log(self, path: str, **query: str) -> bytes:
        """Return a log; ``limitBytes`` may cut it inside a character. Raises ApiError."""
        request = _Request("GET", path, query=query, accept="text/plain, */*")
        answer, data = await self._exchange(request, LOG_TIMEOUT_S)
        if answer.status >= 400:
            raise _error_of(answer, data)
        return data

    async def list_metadata(self, path: str, **query: str) -> Document:
        """Return a whole list with metadata only. Raises ApiError, with the reason ``TOO_LARGE`` where it is."""
        return await self._request(_Request("GET", path, query=query, accept=_METADATA_ONLY))

    async def create(self, path: str, document: Mapping[str, Any], *, dry_run: bool = False) -> Document:
        """Create an object. Raises ApiError, with reason AlreadyExists if the name is taken.

        dry_run: only return what would be stored; every check and every limit applies.
        """
        return await self._request(_Request("POST", path, document, query={"dryRun": "All"} if dry_run else {}))

    async def patch(self, path: str, document: Mapping[str, Any]) -> Document:
        """Apply a JSON merge patch (RFC 7386); with a resourceVersion it is a compare-and-swap."""
        return await self._request(_Request("PATCH", path, document, content=_MERGE_PATCH))

    async def replace(self, path: str, document: Mapping[str, Any]) -> Document:
        """Replace an object if its resourceVersion still matches. Raises ApiError."""
        return await self._request(_Request("PUT", path, document))

    async def delete(self, path: str, *, uid: str, version: int | None = None) -> Document:
        """Delete an object in the foreground if its UID, and its version if given, still match.

        In the foreground: the object stays until its pods are gone, so that the next attempt cannot start beside them.
        """
        conditions = {"uid": uid, **({} if version is None else {"resourceVersion": str(version)})}
        body = {"preconditions": conditions, "propagationPolicy": "Foreground"}
        return await self._request(_Request("DELETE", path, body))

    async def stream(self, path: str, *, silence_s: float, **query: str) -> AsyncGenerator[Document, None]:
        """Yield the changes of a watch until the API server ends it, or is silent for too long.

        Raises:
            ApiError: The API server refused, or the connection broke.
        """
        # Without a total: a healthy watch stays open for minutes, and only silence shows a dead one.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        try:
            answer = await self._send(_Request("GET", path, query=query), timeout)
            if answer.status >= 400:
                raise _error_of(answer, await _read_whole(answer))
            try:
                async for line in _read_lines(answer):
                    yield read_json(line)
            finally:
                # Not released to the pool, which would first have to read an endless response.
                answer.close()
        except TimeoutError:
            _log.info("%s was silent for %.0f s; reopening the watch", path, silence_s)
        except (*_BROKEN, OSError, ValueError) as error:
            raise ApiError(0, type(error).__name__, str(error) or "broken off") from error

    async def _request(self, request: _Request) -> Document:
        async with self._request_slots:
            # Inside the slot: waiting in line is no part of the timeout, and would widen the bounds of the server's
            # clock.
            sent_s = time.monotonic()
            answer, data = await self._exchange(request, REQUEST_TIMEOUT_S)
        if answer.status >= 400:
            raise _error_of(answer, data)
        if not (document := _parse(data)):
            # A proxy or load balancer in between may respond 200 with a page of its own.
            raise ApiError(0, "NotJSON", f"{request.method} {request.path}: {data[:200].decode(errors='replace')!r}")
        # Of successes only: errors may come from a proxy, with its own clock.
        self._clock.update(answer.headers.get("Date"), sent_s)
        return document

    async def _exchange(self, request: _Request, timeout_s: float) -> tuple[aiohttp.ClientResponse, bytes]:
        """Send a request and read the whole response. Raises ApiError if there is none."""
        try:
            answer = await self._send(request, _timeout(timeout_s))
            return answer, await _read_whole(answer)
        except (*_BROKEN, TimeoutError, OSError) as error:
            raise ApiError(0, type(error).__name__, str(error) or "timed out") from error

    async def _send(self, request: _Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        headers = {"Accept": request.accept, "Content-Type": request.content, "User-Agent": "bert-operator"}
        # By default aiohttp asks for compressed answers, of which nobody knows how large they become.
        headers["Accept-Encoding"] = "identity"
        # Read for every request: kubelet rotates the tokens of service accounts every hour.
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        if token:
            headers["Authorization"] = token
        url = self._host + request.path + (f"?{urlencode(request.query)}" if request.query else "")
        body = None if request.body is None else write_json(request.body)
        return await self._session.request(
            request.method,
            url,
            headers=headers,
            data=body,
            timeout=timeout,
            proxy_headers=self._proxy_headers,
            server_hostname=self._tls_name,
        )


async def _read_whole(answer: aiohttp.ClientResponse) -> bytes:
    """Return a body. Raises ApiError where it is too large."""
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            answer.close()
            raise ApiError(0, TOO_LARGE, f"got an answer of more than {MAX_BYTES} bytes; allowed: fewer")
    return b"".join(parts)


async def _read_lines(answer: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a body as they come. Raises ApiError where one is too long."""
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        for piece in part.splitlines(keepends=True):
            parts.append(piece)
            size += len(piece)
            if size > MAX_BYTES:
                raise ApiError(0, TOO_LARGE, f"got a change of more than {MAX_BYTES} bytes; allowed: fewer")
            if piece.endswith(b"\n"):
                yield b"".join(parts)
                parts, size = [], 0


def proxy_of(url: str) -> str | None:
    """Return the proxy for a URL by the environment (``https_proxy``, ``no_proxy``); None: none."""
    parts = urlsplit(url)
    # None for an address without a host, which no request could be made to.
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _error_of(answer: aiohttp.ClientResponse, data: bytes) -> ApiError:
    document = _parse(data)
    return ApiError(
        answer.status,
        str(document.get("reason") or answer.reason),
        str(document.get("message") or data[:200].decode(errors="replace")),
        _seconds(answer.headers.get("Retry-After")),
    )


async def load_configuration() -> Configuration:
    """Return the API server configuration: the pod's service account, else KUBECONFIG or ~/.kube/config.

    Raises:
        config.ConfigException: There is neither.
    """
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration


@cache
def _timeout(total_s: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total_s, sock_connect=CONNECT_TIMEOUT_S)


def _parse(data: bytes) -> Document:
    try:
        document = read_json(data)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and text.isdecimal() else None
