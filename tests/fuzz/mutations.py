"""Changes of an input by what it is made of: a byte flipped in JSON is nearly always refused by the first line of code.

Each takes an input apart, changes a part, by libFuzzer's own mutation where it is text or bytes, and puts it together
again with what is computed from its parts (lengths, checksums) put right.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fuzz_reader import Chance, Mutate

_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**30),
    *(-(2**31), -(2**63), 0.0, -0.0, 0.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf")),
    *("", " ", "a", "0", "1", "-1", "nan", "null", "..", "/", "/etc/passwd", "~", "\0", "\ud800", "\u2028", "\x1b[2J"),
    *("é", "x" * 300, "a\nb", "9" * 5000, [], {}, [[]], [None], {"": None}, [0] * 50),
)
_MAX_BYTES_PARSED = 1 << 16


def mutate_json(data: bytes, chance: Chance) -> bytes:
    """Change one value of a document, or its bytes."""
    draw = chance.draw
    if draw.random() < 0.2 or len(data) > _MAX_BYTES_PARSED:
        return chance.bytes(data)
    try:
        document = json.loads(data)
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            document = mutate_value(document, chance)
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        return chance.bytes(data)


def mutate_value(value: Any, chance: Chance) -> Any:
    """Return a value of JSON with something in it changed: a leaf, a key, an item more, less or twice."""
    draw = chance.draw
    if draw.random() < 0.1:
        return draw.choice(_ODD)
    if isinstance(value, dict) and value:
        key = draw.choice(sorted(value))
        kind = draw.random()
        if kind < 0.75:
            return {**value, key: mutate_value(value[key], chance)}
        if kind < 0.85:
            return {name: held for name, held in value.items() if name != key}
        if kind < 0.92:
            return {(_text(key, chance) if name == key else name): held for name, held in value.items()}
        return {**value, draw.choice(sorted(value)): value[key]}
    if isinstance(value, list) and value:
        at = draw.randrange(len(value))
        kind = draw.random()
        if kind < 0.75:
            return [*value[:at], mutate_value(value[at], chance), *value[at + 1 :]]
        if kind < 0.85:
            return [*value[:at], *value[at + 1 :]]
        return [*value[:at], value[at], *value[at:]]
    if isinstance(value, str) and draw.random() < 0.7:
        return _text(value, chance)
    if isinstance(value, bool) or value is None:
        return draw.choice(_ODD)
    if isinstance(value, int) and draw.random() < 0.5:
        return draw.choice((value + 1, value - 1, -value, value * 2, value << 32, float(value), str(value)))
    return draw.choice(_ODD)


def each_changed(document: Any, changes: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield a document of JSON once with each change: the keys to a value, joined by slashes, and the new value.

    ``...`` takes the value away. Spaces behind the keys do not count: a value may be changed in several ways.
    """
    for path, value in changes.items():
        changed = json.loads(json.dumps(document))
        inner, names = changed, [int(name) if name.isdigit() else name for name in path.strip().split("/")]
        for name in names[:-1]:
            inner = inner[name]
        if value is ...:
            del inner[names[-1]]
        else:
            inner[names[-1]] = value
        yield json.dumps(changed).encode()


def _text(text: str, chance: Chance) -> str:
    return chance.bytes(text.encode(errors="surrogatepass")).decode(errors="replace")


def mutate_zip(data: bytes, chance: Chance) -> bytes:
    """Change a member of an archive, its name, or the archive's bytes."""
    draw = chance.draw
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [[info.filename, archive.read(info)] for info in archive.infolist()]
    except Exception:  # noqa: BLE001 - a mutation of another kind is as good
        return chance.bytes(data)
    if not members or draw.random() < 0.15:
        return chance.bytes(data)
    # Pickles are what archives of torch are about.
    pickles = [member for member in members if member[0].endswith(".pkl")]
    member = draw.choice(pickles if pickles and draw.random() < 0.7 else members)
    kind = draw.random()
    if kind < 0.85:
        member[1] = chance.bytes(member[1])
    elif kind < 0.9:
        member[0] = _text(member[0], chance)
    elif kind < 0.95:
        members.remove(member)
    else:
        members.append(list(member))
    return write_zip(members)


def write_zip(members: list[list[Any]]) -> bytes:
    """Return an archive of uncompressed members, as torch writes them."""
    import warnings

    content = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w") as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice, as is meant here
        for name, held in members:
            archive.writestr(zipfile.ZipInfo(name or "x"), held)
    return content.getvalue()


def split_named(data: bytes) -> tuple[str, bytes]:
    """Return the name on the first line of an input, and the rest: one file of a folder."""
    name, _, content = data.partition(b"\n")
    return name.decode(errors="replace"), content


def mutate_named(by_name: dict[str, Mutate], sound: Callable[[], Sequence[bytes]]) -> Mutate:
    """Return a mutation of one file of a folder, by the ending of the name that its first line holds.

    sound: the inputs of all files: libFuzzer keeps one of them, since in a sound folder all reach the same code.
    """

    def mutate(data: bytes, chance: Chance) -> bytes:
        if chance.draw.random() < 0.3:
            data = chance.draw.choice(sound())
        name, content = split_named(data)
        for ending, change in by_name.items():
            if name.endswith(ending):
                return name.encode() + b"\n" + change(content, chance)
        return name.encode() + b"\n" + chance.bytes(content)

    return mutate
