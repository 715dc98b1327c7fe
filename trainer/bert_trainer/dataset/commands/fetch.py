"""``bert-data fetch``: download published texts, vocabularies, weights and tasks."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from bert_trainer.dataset.commands.terminal import print_line
from bert_trainer.dataset.downloads.archives import unpack
from bert_trainer.dataset.downloads.catalogue import (
    CATALOGUE,
    GROUPS,
    LISTED,
    MLPERF_TEXT,
    WIKIPEDIA,
    Download,
    find_downloads,
)
from bert_trainer.dataset.downloads.listings import find_mlperf_text, find_wikipedia, mirrored
from bert_trainer.dataset.downloads.transfer import Transfer
from bert_trainer.errors import Stopped

_NOTED_S = 10.0
"""Seconds between two lines where there is no terminal."""


def add_command(commands: Any) -> None:
    """Add the verb and its arguments."""
    command = commands.add_parser("fetch", help="get published texts, vocabularies, weights and tasks")
    command.set_defaults(command=fetch)
    command.description = (
        "Fetch what others publish. Broken transfers go on where they stopped; what came is compared with published "
        "sizes and checksums. Nothing else needs the network."
    )
    command.add_argument("names", nargs="*", metavar="NAME", help="see --list")
    command.add_argument("--list", action="store_true", help="names, or all about the named ones; uses no network")
    command.add_argument("--output", type=Path, default=Path("downloads"), help="folder (%(default)s)")
    command.add_argument("--language", default="en", help="of wikipedia: the wiki's code (%(default)s)")
    command.add_argument("--date", default="latest", help="of wikipedia: as 20260101 (%(default)s)")
    command.add_argument("--mirror", metavar="URL", help="take https://HOST/PATH from URL/HOST/PATH")
    command.add_argument("--keep-packed", action="store_true", help="do not unpack archives")


def fetch(arguments: argparse.Namespace) -> int:
    """Fetch what is named, or list what there is."""
    if arguments.list or not arguments.names:
        print_line(describe_catalogue(arguments.names))
        return 0
    try:
        with TransferBar() as bar:
            transfer = Transfer(bar, wait=time.sleep)
            for download in _downloads(arguments, transfer):
                _fetch_one(download, arguments, transfer, bar)
    # Not StopSignals: reading from the network may block for a minute, and what came so far is kept either way.
    except KeyboardInterrupt as stop:
        raise Stopped("stopped by SIGINT; the same command resumes the download") from stop
    return 0


def describe_catalogue(names: list[str]) -> str:
    """Return what can be fetched, as lines of text; with names, every file of these."""
    if not names:
        width = max(map(len, [*CATALOGUE, *LISTED]))
        lines = [f"{download.name:{width}}  {download.summary}" for download in CATALOGUE.values()]
        lines += [f"{name:{width}}  {summary}" for name, summary in LISTED.items()]
        lines += [f"{name:{width}}  {', '.join(members)}" for name, members in GROUPS.items()]
        return "\n".join(lines)
    lines = [f"{name}: {LISTED[name]}" for name in names if name in LISTED]
    for download in find_downloads([name for name in names if name not in LISTED]):
        lines += [f"{download.name}: {download.summary}", f"  from {download.source}"]
        for file in download.files:
            size = f"{file.size:,} bytes" if file.size is not None else "size not published"
            checksum = "checksum not published"
            if file.checksum is not None:
                checksum = f"{file.checksum.algorithm} {file.checksum.digest}"
            lines += [f"  {file.path}: {size}, {checksum}", f"    {file.url}"]
            lines += [f"    {name}: sha256 {digest}" for name, digest in file.members.items()]
    return "\n".join(lines)


def _downloads(arguments: argparse.Namespace, transfer: Transfer) -> list[Download]:
    mirror = arguments.mirror
    plain = find_downloads([name for name in arguments.names if name not in LISTED])
    found = [
        replace(download, files=tuple(replace(file, url=mirrored(file.url, mirror)) for file in download.files))
        for download in plain
    ]
    if WIKIPEDIA in arguments.names:
        found.append(find_wikipedia(transfer, arguments.language, arguments.date, mirror=mirror))
    if MLPERF_TEXT in arguments.names:
        found.append(find_mlperf_text(transfer, mirror=mirror))
    return found


def _fetch_one(download: Download, arguments: argparse.Namespace, transfer: Transfer, bar: TransferBar) -> None:
    bar.note(f"{download.name}: {download.summary}; from {download.source}")
    for file in download.files:
        path = transfer.fetch(file, arguments.output)
        # Again on every call: what is unpacked already is only compared.
        if path.suffix == ".zip" and not arguments.keep_packed:
            for unpacked in unpack(path, file.members, transfer):
                bar.note(f"unpacked {unpacked}")
        # Paths alone go to standard output, for scripts; remarks and the bar go to standard error.
        print_line(str(path))


class TransferBar:
    """Bytes, rate and time left: a bar on a terminal, a line now and then elsewhere. A context manager."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._shown = console.is_terminal
        self._task: TaskID | None = None
        self._name, self._done = "", 0
        self._total: int | None = None
        self._first = 0
        """Bytes that were there when the file was begun."""
        self._began_at_s = time.monotonic()
        self._noted_at_s = time.monotonic()

    def __enter__(self) -> TransferBar:
        """Show the bar."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        self._progress.stop()

    def begin(self, name: str, total: int | None, done: int) -> None:
        """Begin a file: its name, its bytes if they are known, and how many are there already."""
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._name, self._done, self._total = name, done, total
        self._first, self._began_at_s = done, time.monotonic()
        self._task = self._progress.add_task(name, total=total, completed=done)

    def advance(self, num_bytes: int) -> None:
        """Add so many bytes."""
        self._done += num_bytes
        if self._task is not None:
            self._progress.advance(self._task, num_bytes)
        if not self._shown and time.monotonic() - self._noted_at_s >= _NOTED_S:
            self._noted_at_s = time.monotonic()
            elapsed_s = self._noted_at_s - self._began_at_s
            self.note(
                f"{self._name}: {describe_progress(self._done, self._total, self._done - self._first, elapsed_s)}"
            )

    def note(self, text: str) -> None:
        """Show a line to the user: above the bar, or on standard error."""
        if self._shown:
            self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print_line(text, sys.stderr)


def describe_progress(done: int, total: int | None, came: int, elapsed_s: float) -> str:
    """Return the progress of a file as a line. done, total: its bytes. came: of them, in ``elapsed_s`` seconds."""
    of = f" of {total / 1e6:,.0f}" if total else ""
    rate = came / elapsed_s if elapsed_s > 0 else 0.0
    left = f", {(total - done) / rate:,.0f} s left" if total and rate else ""
    return f"{done / 1e6:,.0f}{of} MB, {rate / 1e6:,.1f} MB/s{left}"
