"""Prices of an hour of something: of a node, a CPU, a GiB of memory, a device. They come from whoever asks. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bert_operator.errors import InputError

NODE = "node"
"""A pod of ranks in a price table: with GPUs, or with most of a machine's cores, it has the node to itself."""
CURRENCY = "currency"
_ALLOWED = f"RESOURCE=PRICE of one hour, such as {NODE}=3.06, cpu=0.04, memory=0.005 (a GiB) or nvidia.com/gpu=2.5"
_LINE = re.compile(r"""(?P<name>"[^"]+"|'[^']+'|[^\s:#"']+)\s*:\s+(?P<value>[^#]*?)\s*(#.*)?""")


@dataclass(frozen=True, slots=True)
class Prices:
    """Hourly prices by resource."""

    of_an_hour: Mapping[str, float]
    """By resource; memory by GiB."""
    currency: str = ""
    """As the table calls it; empty: it does not."""


def parse_prices(words: Iterable[str], table: str | None = None, *, source: str = "") -> Prices:
    """Return the prices of the command line, which override those of a table.

    Args:
        words: ``RESOURCE=PRICE`` each.
        table: Text of a file: an object in JSON, or lines ``resource: price`` as YAML has them. None: no file.
        source: Name of that file.

    Raises:
        InputError: Something of it is no price.
    """
    entries = {} if table is None else _read_table(table, source)
    currency = entries.pop(CURRENCY, "")
    found = {name: _price(value, f"{source}: {name}") for name, value in entries.items()}
    for word in words:
        name, sign, value = word.rpartition("=")
        if not sign or not name:
            raise InputError(f"--price: got {word!r}; allowed: {_ALLOWED}")
        if name == CURRENCY:
            currency = value
        else:
            found[name] = _price(value, f"--price {name}")
    return Prices(found, str(currency))


def _read_table(text: str, source: str) -> dict[str, object]:
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except (RecursionError, ValueError) as error:
            raise InputError(f"{source}: is no JSON ({error})") from error
    found: dict[str, object] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise InputError(
                f"{source}: line {number}: got {line[:60]!r}; allowed: a resource, a colon, a blank and the price of "
                f"one hour, such as cpu: 0.04"
            )
        found[match["name"].strip("\"'")] = match["value"].strip("\"'")
    return found


def _price(value: object, path: str) -> float:
    try:
        price = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (OverflowError, ValueError):
        price = math.nan
    if not (math.isfinite(price) and price >= 0):
        raise InputError(f"{path}: got {value!r}; allowed: a number from 0, the price of one hour")
    return price
