"""What MediaWiki's templates inside sentences show, by the names that the English Wikipedia has for them.

Templates are not expanded: those here show what stands in them, those of ``is_annotation`` nothing that a sentence
misses (footnotes, maintenance tags, pronunciation). Any other one inside a sentence leaves a hole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

Arguments = Mapping[str, str]
"""Shown text by name; positional ones are called "1", "2" and so on."""

_FIXED = {
    "'": "'",
    "'s": "'s",
    "\u2013": "\u2013",
    "ndash": "\u2013",
    "endash": "\u2013",
    "mdash": "\u2014",
    "emdash": "\u2014",
    "snd": " \u2013 ",
    "spnd": " \u2013 ",
    "spaced ndash": " \u2013 ",
    "nbsp": " ",
    "space": " ",
    "pi": "\u03c0",
    "!": "|",
    "=": "=",
}
"""Templates that stand for a character."""

_PARAMETERS = {
    **dict.fromkeys(("lang", "langx", "color", "script", "rtl-lang"), ("2",)),
    **dict.fromkeys(("blockquote", "quote"), ("1", "text")),
    **dict.fromkeys(
        (
            *(
                "abbr",
                "abbrlink",
                "tooltip",
                "cquote",
                "nihongo",
                "nihongo2",
                "no wrap",
                "nobr",
                "nowrap",
                "small",
                "sic",
            ),
            *(
                "visible anchor",
                "vanchor",
                "em",
                "strong",
                "smallcaps",
                "sc",
                "sc2",
                "var",
                "mono",
                "code",
                "kbd",
                "tt",
            ),
            *(
                "mvar",
                "math",
                "chem2",
                "sup",
                "sub",
                "big",
                "nobold",
                "noitalic",
                "underline",
                "ill",
                "dfn",
                "linktext",
            ),
            *(
                "interlanguage link",
                "flag",
                "flagcountry",
                "flagu",
                "not a typo",
                "as written",
                "samp",
                "midsize",
                "title",
            ),
            *("nastaliq", "unicode", "bo-textonly", "large", "larger", "smaller", "resize", "proper name"),
        ),
        ("1",),
    ),
    **dict.fromkeys(("script/arabic", "script/hebrew"), ("1",)),
}
"""Templates that show some of their parameters, in this order."""

_SIGNS = {
    **dict.fromkeys(("us$", "usd"), "US$"),
    **dict.fromkeys(("\u00a3", "gbp", "pound sterling"), "\u00a3"),
    **dict.fromkeys(("\u20ac", "euro", "eur"), "\u20ac"),
    **dict.fromkeys(("\u00a5", "jpy", "yen"), "\u00a5"),
    **dict.fromkeys(("inr", "indian rupee", "rupee"), "\u20b9"),
    **dict.fromkeys(("a$", "aud"), "A$"),
    **dict.fromkeys(("c$", "cad"), "C$"),
}
_SHIP_PREFIXES = frozenset(
    ("hms", "uss", "ss", "rms", "mv", "ms", "hmas", "hmcs", "usns", "uscgc", "ins", "sms", "hnlms")
)

_RANGES = {
    **dict.fromkeys(("to", "to(-)", "-to-"), "to"),
    **dict.fromkeys(("and", "and(-)", "&"), "and"),
    **dict.fromkeys(("or",), "or"),
    **dict.fromkeys(("by", "by(x)"), "by"),
    **dict.fromkeys(("x", "\u00d7", "xx", "*", "x(by)"), "\u00d7"),
    **dict.fromkeys(("-", "\u2013", "ndash"), "\u2013"),
    **dict.fromkeys(("+/-", "\u00b1", "\u00b1 "), "\u00b1"),
    "to about": "to about",
}
"""What stands between the numbers of {{convert}}."""
_UNITS = {
    "c": "\u00b0C",
    "f": "\u00b0F",
    "kph": "km/h",
    "sqmi": "sq mi",
    "sqft": "sq ft",
    "sqkm": "km\u00b2",
    "cuft": "cu ft",
    "cumi": "cu mi",
    "usgal": "US gal",
    "impgal": "imp gal",
}
_COMPOUND = frozenset(("ft", "foot", "lb", "mi", "st", "yd"))
_POWER = re.compile(r"(?<=[a-z])([23])$")
_POWERS = {"2": "\u00b2", "3": "\u00b3"}
_NUMBER = re.compile(r"[-+\u2212]?[\d.,]+(?:[eE][-+]?\d+)?(?:[ +]?\d+(?:/+|\u2044)\d+)?|[-+]?\d+(?:/+|\u2044)\d+")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)

_ANNOTATIONS = frozenset(
    (
        *(
            "citation needed",
            "cn",
            "fact",
            "clarify",
            "clarify span",
            "who",
            "whom?",
            "who?",
            "when",
            "where",
            "which",
            "why",
        ),
        *(
            "by whom",
            "by whom?",
            "according to whom",
            "vague",
            "dubious",
            "disputed inline",
            "sfn",
            "sfnp",
            "sfnm",
            "harv",
        ),
        *(
            "efn",
            "efn-ua",
            "efn-la",
            "efn-lr",
            "efn-ur",
            "refn",
            "#tag:ref",
            "r",
            "rp",
            "ref",
            "ref label",
            "note",
            "notetag",
        ),
        *(
            "better source needed",
            "better source",
            "failed verification",
            "page needed",
            "dead link",
            "full citation needed",
        ),
        *(
            "verify source",
            "original research inline",
            "pov statement",
            "peacock inline",
            "update inline",
            "needs update",
        ),
        *("unreliable source?", "self-published inline", "medical citation needed", "verification needed", "specify"),
        *(
            "respell",
            "audio",
            "listen",
            "pronunciation",
            "coord",
            "coords",
            "anchor",
            "anchors",
            "flagicon",
            "flag icon",
        ),
        *(
            "zh",
            "isbn",
            "issn",
            "doi",
            "oclc",
            "webarchive",
            "wikicite",
            "citation",
            "elucidate",
            "ambiguous",
            "time needed",
        ),
        *(
            "thinsp",
            "hair space",
            "zwsp",
            "shy",
            "wbr",
            "zwj",
            "zwnj",
            "clear",
            "-",
            "nnbsp",
            "inflation/fn",
            "snf",
            "tsfn",
        ),
        *(
            "contradictory inline",
            "contradict-inline",
            "non-primary source needed",
            "primary source inline",
            "sps",
            "pb",
        ),
    )
)
_ANNOTATION_STARTS = (
    "cite ",
    "cite-",
    "ipa",
    "pron-",
    "use ",
    "infobox",
    "short description",
    "angbr ipa",
    "multiple image",
)


def show_template(name: str, given: Arguments) -> str | None:
    """Return what a template shows inside a sentence; None where that is not known.

    name: lower case, with spaces.
    """
    if name in _FIXED:
        return _FIXED[name]
    if name in _PARAMETERS or name.startswith("lang-"):
        shown = [given[key] for key in _PARAMETERS.get(name, ("1",)) if given.get(key)]
        # The language's templates of old had the text as their second parameter, if two were given.
        return " ".join(shown) or None
    if name in _SIGNS:
        return _SIGNS[name] + given.get("1", "")
    if name in _SHIP_PREFIXES and given.get("1"):
        return f"{name.upper()} {given['1']}"
    renderer = _RENDERERS.get(name)
    return renderer(given) if renderer is not None else None


def is_shown(name: str) -> bool:
    """Return whether ``show_template`` knows this one."""
    tables: tuple[Mapping[str, object], ...] = (_FIXED, _PARAMETERS, _SIGNS, _RENDERERS)
    return name.startswith("lang-") or name in _SHIP_PREFIXES or any(name in table for table in tables)


def is_annotation(name: str) -> bool:
    """Return whether a sentence is whole without this template."""
    return name in _ANNOTATIONS or name.startswith(_ANNOTATION_STARTS)


def _positional(given: Arguments) -> list[str]:
    found: list[str] = []
    while (value := given.get(str(len(found) + 1))) is not None:
        found.append(value.strip())
    return found


def _convert(given: Arguments) -> str | None:
    """``5|to|7|km|mi``: numbers, with words between them, and the unit that they are in; the others are conversions."""
    values = _positional(given)
    if not values or not _NUMBER.fullmatch(values[0]):
        return None
    shown, at = [_number(values[0])], 1
    while at + 1 < len(values) and values[at].lower() in _RANGES and _NUMBER.fullmatch(values[at + 1]):
        word, number = _RANGES[values[at].lower()], _number(values[at + 1])
        shown = [*shown[:-1], f"{shown[-1]}{word}{number}"] if word == "\u2013" else [*shown, word, number]
        at += 2
    if at >= len(values) or not values[at]:
        return None
    shown.append(_unit(values[at]))
    # 5|ft|6|in: one length in two units.
    while (
        at + 2 < len(values)
        and _NUMBER.fullmatch(values[at + 1])
        and values[at] in ("ft", "lb", "st", "mi", "yd", "foot")
    ):
        shown += [_number(values[at + 1]), _unit(values[at + 2])]
        at += 2
    return " ".join(shown)


def _number(text: str) -> str:
    return re.sub(r"(?<=\d)\+(?=\d)", " ", text).replace("//", "/").replace("\u2044", "/")


def _unit(text: str) -> str:
    return _UNITS.get(text.lower()) or _POWER.sub(lambda found: _POWERS[found[1]], text)


def _val(given: Arguments) -> str | None:
    values = [value for value in _positional(given) if value]
    if not values or len(values) > 2:
        return None
    power = f" \u00d7 10^{given['e']}" if given.get("e") else ""
    unit = given.get("u") or given.get("ul") or ""
    return "\u00b1".join(values) + power + (f" {unit}" if unit else "")


def _circa(given: Arguments) -> str:
    return " \u2013 ".join(f"c. {value}" for value in _positional(given) if value) or "c."


def _fraction(given: Arguments) -> str | None:
    values = [value for value in _positional(given) if value]
    if len(values) == 1:
        return f"1/{values[0]}"
    return {2: "{0}/{1}", 3: "{0} {1}/{2}"}[len(values)].format(*values) if len(values) in (2, 3) else None


def _as_of(given: Arguments) -> str | None:
    values = [value for value in _positional(given) if value]
    if not values:
        return None
    month = values[1] if len(values) > 1 else ""
    if month.isdecimal() and len(month) < 3 and 1 <= int(month) <= 12:
        month = _MONTHS[int(month) - 1]
    beginning = "as of" if given.get("lc") else "As of"
    return " ".join(part for part in (beginning, *values[2:3], month, values[0]) if part)


def _ship(given: Arguments) -> str | None:
    return " ".join(value for value in _positional(given)[:2] if value) or None


def _ship_class(given: Arguments) -> str | None:
    values = _positional(given)
    return " ".join((f"{values[0]}-class", *values[1:2])) if values and values[0] else None


def _last(given: Arguments) -> str | None:
    """``ar|ALA|kitab``, ``red|yellow|text``: the text comes last, and what precedes it may be left out."""
    values = _positional(given)
    return (values[-1] or None) if len(values) > 1 else None


def _chemical(given: Arguments) -> str | None:
    return "".join(_positional(given)) or None


def _height(given: Arguments) -> str | None:
    units = ("m", "cm", "ft", "in")
    return " ".join(f"{given[unit]} {unit}" for unit in units if given.get(unit)) or None


def _literally(given: Arguments) -> str | None:
    return f"lit. '{given['1']}'" if given.get("1") else None


_RENDERERS: Mapping[str, Callable[[Arguments], str | None]] = MappingProxyType(
    {
        **dict.fromkeys(("convert", "cvt"), _convert),
        "val": _val,
        **dict.fromkeys(("circa", "c.", "ca.", "ca"), _circa),
        **dict.fromkeys(("frac", "fraction", "sfrac"), _fraction),
        "as of": _as_of,
        "ship": _ship,
        **dict.fromkeys(("sclass", "sclass2", "sclass-"), _ship_class),
        "chem": _chemical,
        **dict.fromkeys(("transl", "transliteration", "tlit", "font color"), _last),
        **dict.fromkeys(("height", "convinfobox"), _height),
        **dict.fromkeys(("lit", "literal translation"), _literally),
    }
)
