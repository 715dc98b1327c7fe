"""Small MediaWiki dumps in the shape of Wikimedia's, with text of our own."""

from __future__ import annotations

import bz2
from xml.sax.saxutils import escape

HEADER = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <namespaces>
      <namespace key="-2" case="first-letter">Medium</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Diskussion</namespace>
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
END = "</mediawiki>\n"


def page(title: str, wikitext: str, *, namespace: int = 0, redirect: bool = False, model: str = "wikitext") -> str:
    """Return one page element."""
    target = '<redirect title="Elsewhere" />' if redirect else ""
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{namespace}</ns>
    <id>1</id>{target}
    <revision>
      <id>2</id>
      <timestamp>2026-01-01T00:00:00Z</timestamp>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="{len(wikitext)}" xml:space="preserve">{escape(wikitext)}</text>
      <sha1>0</sha1>
    </revision>
  </page>
"""


def dump(*pages: str) -> bytes:
    """Return a whole dump."""
    return (HEADER + "".join(pages) + END).encode()


def multistream(*groups: list[str]) -> bytes:
    """Return a dump in several bzip2 streams: the header, groups of pages, the end."""
    streams = [HEADER, *("".join(group) for group in groups), END]
    return b"".join(bz2.compress(stream.encode()) for stream in streams)
