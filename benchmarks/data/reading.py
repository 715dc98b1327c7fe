"""Throughput of reading text on one core, by format, against splitting sentences alone. Prints ``key=value`` pairs.

The text is this Python's documentation: as one sentence per line, as paragraphs, as JSON Lines, and as a dump with
links, references, templates, tables and lists of our own making, in about the shares that articles have.
Processor time, the fastest of some rounds.
"""

from __future__ import annotations

import argparse
import bz2
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

import sentencex

from bert_job.preparation import CorpusSpec
from bert_trainer.dataset.corpus.corpora import open_corpora
from bert_trainer.dataset.corpus.document import Document
from bert_trainer.dataset.corpus.python_docs import read_python_docs

_SENTENCES_PER_PARAGRAPH = 6
_REFERENCE = (
    '<ref name="n{0}">{{{{cite web|url=http://example.org/{0}|title=A title of some length|last=Name|first=First|'
    "date=2001-01-01|access-date=2001-01-01|publisher=Publisher}}}}</ref> "
)
_INFOBOX = (
    "{{Infobox thing\n| name = x\n| population = {{formatnum|12345}}\n| image = [[File:x.jpg|thumb|A [[y]]]]\n}}\n"
)
_TABLE = '\n{| class="wikitable"\n|-\n! a !! b\n|-\n| 1 || 2\n|-\n| [[x]] || {{flag|US}}\n|}\n'


def main() -> None:
    """Write the text in every format, read each, and print rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copies", type=int, default=5, help="of the text (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    arguments = parser.parse_args()
    documents = list(read_python_docs()) * arguments.copies
    paragraphs = [list(_paragraphs(document)) for document in documents]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lines.txt").write_text("\n\n".join("\n".join(document.sentences) for document in documents))
        (folder / "paragraphs.txt").write_text("\n\n".join("\n".join(lines) for lines in paragraphs))
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": "\n".join(p)}) + "\n" for p in paragraphs))
        dump = _dump(documents).encode()
        (folder / "dump.xml").write_bytes(dump)
        (folder / "dump.xml.bz2").write_bytes(bz2.compress(dump))
        rates = {"sentencex_mb_per_s": _rate(lambda: _split_only(paragraphs), arguments.rounds)}
        for file in ("lines.txt", "paragraphs.txt", "text.jsonl", "dump.xml", "dump.xml.bz2"):
            key = f"{file.replace('.', '_')}_mb_per_s"
            rates[key] = _rate(lambda file=file: _read(folder / file), arguments.rounds)  # type: ignore[misc]
        rates["dump_xml_input_mb_per_s"] = rates["dump_xml_mb_per_s"] * len(dump) / _read(folder / "dump.xml")
    print(" ".join(f"{key}={rate:.1f}" for key, rate in rates.items()))


def _paragraphs(document: Document) -> Iterator[str]:
    for start in range(0, len(document.sentences), _SENTENCES_PER_PARAGRAPH):
        yield " ".join(document.sentences[start : start + _SENTENCES_PER_PARAGRAPH])


def _dump(documents: list[Document]) -> str:
    pages = (
        f"<page><title>{number}</title><ns>0</ns><id>1</id><revision><model>wikitext</model>"
        f"<text>{escape(_wikitext(document))}</text></revision></page>\n"
        for number, document in enumerate(documents)
    )
    return f"<mediawiki><siteinfo></siteinfo>\n{''.join(pages)}</mediawiki>\n"


def _wikitext(document: Document) -> str:
    pieces = [_INFOBOX]
    for number, sentence in enumerate(document.sentences):
        words = sentence.split()
        if len(words) > 4:
            words[1], words[3] = f"[[{words[1]}]]", f"'''{words[3]}'''"
        pieces.append(" ".join(words))
        pieces.append(_REFERENCE.format(number) if number % 2 == 0 else " ")
        pieces.append("\n\n" if number % _SENTENCES_PER_PARAGRAPH == _SENTENCES_PER_PARAGRAPH - 1 else "")
        pieces.append("\n== Heading ==\n* item [[a]]\n* item b\n" if number % 20 == 19 else "")
        pieces.append(_TABLE if number % 50 == 49 else "")
    return "".join(pieces)


def _read(path: Path) -> int:
    """Read a corpus and return its bytes of text."""
    corpora = open_corpora([CorpusSpec(path=str(path))])
    return sum(len("\n".join(document.sentences).encode()) for document in corpora.documents())


def _split_only(paragraphs: list[list[str]]) -> int:
    return sum(
        len(sentence.encode()) for lines in paragraphs for line in lines for sentence in sentencex.segment("en", line)
    )


def _rate(work: Callable[[], int], rounds: int) -> float:
    """Return MB of text per second of processor time, of the fastest round."""
    rates = []
    for _ in range(rounds):
        began_s = time.process_time()
        num_bytes = work()
        rates.append(num_bytes / 1e6 / (time.process_time() - began_s))
    return max(rates)


if __name__ == "__main__":
    main()
