"""Make the documentation's site (``make docs``): gather the pages and have Sphinx build them, strictly.

    python tools/docs_site.py ENVIRONMENT      (a virtual environment that tools/docs.sh has made)

Pages stay where people find them in the repository, README.md and the examples' own included. Sphinx takes one folder,
hence the copies in ``build/pages``, which have the repository's layout: every relative link is the same here and there.
A file that a page links to, such as a manifest, comes along. What stands where on the site is said by docs/README.md: a
part for each of its headings, a page for each link. Pages in the folder of a README.md that is listed belong below it.

A page that is not listed, a link or an anchor that leads nowhere, and whatever else Sphinx warns of fail the build. The
site needs no network, neither to be made nor to be read, and no server: ``build/site/index.html`` in a browser.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build/pages"
SITE = ROOT / "build/site"
CONTENTS = "docs/README.md"
SOURCES = ("*.md", "docs", "examples/**/*.md", "images/*.md", "charts/**/*.md", "deploy/**/*.md")
"""What git knows by these patterns is on the site."""
OUTSIDE = {"docs/adr/template.md"}
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src"}
"""Elements that make a browser fetch something, and where they name it. Links that people follow are none of them."""
FIRST_PAGE = '<!doctype html><meta charset="utf-8"><title>Documentation</title>' + (
    '<meta http-equiv="refresh" content="0; url=README.html"><a href="README.html">Documentation</a>\n'
)


def main() -> int:
    """Gather, build and look at the result; 1 where the site is not as it should be."""
    if len(sys.argv) != 2 or not (command := Path(sys.argv[1]) / "bin/sphinx-build").exists():
        print(f"usage: {sys.argv[0]} ENVIRONMENT, which tools/docs.sh prints; make docs runs both", file=sys.stderr)
        return 2
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    pages = find_pages()
    for page in pages:
        copy_page(page)
    add_contents(pages)
    options = ["-q", "-W", "--keep-going", "-b", "html", "-c", "docs", "-d", "build/pages.cache", "-j", "2"]
    # Warnings name the copies, whose paths are those of the pages.
    status = subprocess.run([command, *options, PAGES, SITE], cwd=ROOT).returncode
    if status:
        print("hint: build/pages holds copies; fix the page of the same path", file=sys.stderr)
        return status
    (SITE / "index.html").write_text(FIRST_PAGE)
    problems = [
        f"{file.relative_to(SITE)}: got {address}, which a browser would fetch; allowed: files of the site alone"
        for file in sorted(SITE.rglob("*.html"))
        for address in fetched(file.read_text())
    ]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    print(f"docs: pages={len(pages)} problems={len(problems)} {SITE.relative_to(ROOT)}/index.html")
    return 1 if problems else 0


def find_pages() -> list[str]:
    """Return the paths of all pages, from the root of the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SOURCES]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    names = {name for name in listed.split("\0") if name.endswith(".md")} - OUTSIDE
    return sorted(name for name in names if (ROOT / name).exists())


def copy_page(page: str) -> None:
    """Copy a page, and the files of the repository that it links to, into ``build/pages``."""
    source = ROOT / page
    linked = [(source.parent / target).resolve() for target in LINK.findall(source.read_text()) if "://" not in target]
    for file in [source, *(path for path in linked if path.suffix != ".md" and path.is_file())]:
        copy = PAGES / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)


def add_contents(pages: list[str]) -> None:
    """Say in the copies which page stands below which: the parts of docs/README.md, folders below their README.md."""
    parts = read_contents((ROOT / CONTENTS).read_text())
    listed = {page for entries in parts.values() for page in entries}
    first = [contents([CONTENTS])]
    first += [contents(entries, part) for part, entries in parts.items()]
    with (PAGES / "README.md").open("a") as file:
        file.write("".join(first))
    for page in sorted(listed):
        folder = page.removesuffix("README.md")
        below = [other for other in pages if folder != page and other.startswith(folder) and other not in listed]
        if below:
            with (PAGES / page).open("a") as file:
                file.write(contents(below))


def read_contents(text: str) -> dict[str, list[str]]:
    """Return the pages below each heading of docs/README.md, by their paths from the root of the repository."""
    _, *parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    folder = os.path.dirname(CONTENTS)
    return {
        heading: [os.path.normpath(f"{folder}/{target}") for target in LINK.findall(part)]
        for heading, part in zip(parts[::2], parts[1::2], strict=True)
    }


def contents(pages: list[str], part: str = "") -> str:
    """Return Sphinx's directive for a table of contents that is shown beside pages, not on one."""
    lines = [":hidden:", *([f":caption: {part}"] if part else []), "", *(f"/{page}" for page in pages)]
    return "\n".join(["", "```{toctree}", *lines, "```", ""])


def fetched(text: str) -> list[str]:
    """Return what a browser would fetch from other places to show a page."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            wanted = dict(attrs).get(FETCHED.get(tag, "")) or ""
            if wanted.startswith(("http:", "https:", "//")):
                found.append(wanted)

    Reader().feed(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
