"""docs/README.md is the site's table of contents: it lists every page once. ``make docs`` builds it, strictly."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import docs_site  # noqa: E402
from git_clone import require_clone  # noqa: E402


def test_every_page_is_listed_once() -> None:
    require_clone("which knows what pages there are")
    listed = Counter(
        page for pages in docs_site.read_contents((ROOT / docs_site.CONTENTS).read_text()).values() for page in pages
    )
    assert [page for page, times in listed.items() if times > 1] == []
    # The pages in the folder of a README.md that is listed stand below it.
    folders = tuple(
        page.removesuffix("README.md") for page in listed if page.count("/") and page.endswith("/README.md")
    )
    pages = set(docs_site.find_pages()) - {"README.md", docs_site.CONTENTS}
    assert {page for page in pages - set(listed) if not page.startswith(folders)} == set(), (
        "docs/README.md lists every page"
    )


def test_contents_are_the_links_below_each_heading() -> None:
    text = "# All\n\n[Home](../README.md)\n\n## Guides\n\n* [One](guides/one.md#1): 1\n* [Two](../images/README.md)\n"
    assert docs_site.read_contents(text) == {"Guides": ["docs/guides/one.md", "images/README.md"]}


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ('<script src="https://cdn.example/x.js"></script>', ["https://cdn.example/x.js"]),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', ["//fonts.example/x.css"]),
        ('<img src="_images/x.png"><a href="https://kubernetes.io">there</a>', []),
    ],
)
def test_what_a_browser_would_fetch_is_found(element: str, expected: list[str]) -> None:
    assert docs_site.fetched(f"<html><body>{element}</body></html>") == expected
