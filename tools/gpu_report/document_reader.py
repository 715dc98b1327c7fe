"""Takes pydantic's place where it is not installed: reads the trainer's run configuration, and checks less.

What ``bert_job`` and the trainer use and no more: fields with defaults, nested sections, tuples, unions told apart by a
field or a function. Types and unknown keys are checked; bounds, patterns and lengths are not, since the report writes
its documents itself. Its tests read the same documents with pydantic.
"""

from __future__ import annotations

import copy
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

__version__ = "gpu_report.document_reader"
ConfigDict = dict
_REQUIRED = object()


class ValidationError(ValueError):
    """A value does not fit; ``errors`` has the same keys as pydantic's."""

    def __init__(self, location: tuple[str | int, ...], given: object, message: str, kind: str = "") -> None:
        """location: of the field in the document. kind: pydantic's word for it, where somebody asks for that."""
        super().__init__(f"{'.'.join(map(str, location))}: got {given!r:.200}; {message}")
        self._item = {"loc": location, "input": given, "msg": message, "type": kind}

    def errors(self) -> list[dict[str, Any]]:
        """Return the one problem that was found."""
        return [self._item]


class FieldInfo:
    """What ``Field`` was called with, and what a section says of the field."""

    description = ""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.annotation: Any = None
        self.alias: str | None = None
        self.default: Any = settings.get("default", _REQUIRED)
        self.exclude = settings.get("exclude", False)

    def is_required(self) -> bool:
        """Return whether a document has to have the field."""
        return self.default is _REQUIRED


Field = FieldInfo


@dataclass(frozen=True)
class Discriminator:
    """Names the tag of the union's member that a value belongs to."""

    function: Callable[[Any], str]


@dataclass(frozen=True)
class Tag:
    """A member's tag."""

    tag: str


class BaseModel:
    """A section: fields from annotations, values converted once, never changed."""

    model_config: ClassVar[dict[str, Any]] = {}
    model_fields: ClassVar[dict[str, FieldInfo]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        inherited = [base.__dict__.get("model_config", {}) for base in reversed(cls.__mro__)]
        cls.model_config = {key: value for config in inherited for key, value in config.items()}
        cls.model_fields = _Fields(cls)  # type: ignore[assignment]  # read when asked for: sections name later ones

    def __init__(self, **given: Any) -> None:
        self._fill(given, ())

    def _fill(self, given: Mapping[str, Any], at: tuple[str | int, ...]) -> None:
        hints = _hints(type(self))
        unknown = [key for key in given if key not in hints]
        if unknown and self.model_config.get("extra") == "forbid":
            at = (*at, unknown[0])
            raise ValidationError(at, given[unknown[0]], "allowed: no such field", kind="extra_forbidden")
        for name, hint in hints.items():
            if name in given:
                value = _convert(hint, given[name], (*at, name))
            elif not (field := type(self).model_fields[name]).is_required():
                value = copy.deepcopy(field.default)
            else:
                raise ValidationError((*at, name), None, "Field required")
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name}: values never change")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @classmethod
    def model_validate(cls, document: Any) -> typing.Self:
        """Read a document."""
        return typing.cast(typing.Self, _section(cls, document, ()))

    @classmethod
    def model_validate_json(cls, text: str | bytes, *, by_alias: bool = False, by_name: bool = True) -> typing.Self:
        """Read a document with the fields' own names."""
        assert by_name, "jobs, whose fields have other names, are read where pydantic is"
        assert not by_alias, "jobs, whose fields have other names, are read where pydantic is"
        return cls.model_validate(json.loads(text))

    @classmethod
    def model_construct(cls, **given: Any) -> typing.Self:
        """Return a section of values that are not checked."""
        made = cls.__new__(cls)
        for name, field in cls.model_fields.items():
            if name in given or not field.is_required():
                object.__setattr__(made, name, given[name] if name in given else copy.deepcopy(field.default))
        return made

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> typing.Self:
        """Return the same with other values, which are not checked."""
        found = copy.copy(self)
        for name, value in (update or {}).items():
            object.__setattr__(found, name, value)
        return found

    def model_dump(
        self, *, mode: str = "python", exclude: set[str] | None = None, exclude_none: bool = False
    ) -> dict[str, Any]:
        """Return the document."""
        return {
            name: _dump(value, mode, exclude_none)
            for name, value in vars(self).items()
            if name not in (exclude or ()) and not (exclude_none and value is None)
            if not type(self).model_fields[name].exclude
        }


class _Fields(Mapping[str, FieldInfo]):
    """The fields of a section, by name."""

    def __init__(self, owner: type[BaseModel]) -> None:
        self._owner = owner

    def __getitem__(self, name: str) -> FieldInfo:
        said = getattr(self._owner, name, _REQUIRED)
        info = said if isinstance(said, FieldInfo) else FieldInfo(default=said)
        info.annotation = _bare(_hints(self._owner)[name])[0]
        return info

    def __iter__(self) -> typing.Iterator[str]:
        return iter(_hints(self._owner))

    def __len__(self) -> int:
        return len(_hints(self._owner))


def _hints(cls: type[BaseModel]) -> dict[str, Any]:
    if "_own_hints" not in cls.__dict__:
        found = typing.get_type_hints(cls, include_extras=True)
        cls._own_hints = {  # type: ignore[attr-defined]
            name: hint for name, hint in found.items() if typing.get_origin(hint) is not ClassVar
        }
    return cls._own_hints  # type: ignore[attr-defined, no-any-return]


def _bare(hint: Any) -> tuple[Any, list[Any]]:
    """Return a type without its annotations, and these."""
    extras: list[Any] = []
    while typing.get_origin(hint) is typing.Annotated:
        hint, *found = typing.get_args(hint)
        extras += found
    return hint, extras


def _dump(value: Any, mode: str, exclude_none: bool) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode=mode, exclude_none=exclude_none)
    if isinstance(value, tuple):
        items = [_dump(item, mode, exclude_none) for item in value]
        return items if mode == "json" else tuple(items)
    if isinstance(value, dict):
        return {key: _dump(item, mode, exclude_none) for key, item in value.items()}
    return value


def _section(cls: type[BaseModel], given: Any, at: tuple[str | int, ...]) -> Any:
    if isinstance(given, cls):
        return given
    if not isinstance(given, Mapping):
        raise ValidationError(at, given, f"allowed: the fields of {cls.__name__}")
    made = cls.__new__(cls)
    made._fill(given, at)
    return made


def _convert(hint: Any, given: Any, at: tuple[str | int, ...]) -> Any:
    hint, extras = _bare(hint)
    origin, members = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return _literal(members, given, at)
    if origin in (typing.Union, types.UnionType):
        return _union(members, extras, given, at)
    if origin is tuple:
        if not isinstance(given, list | tuple):
            raise ValidationError(at, given, "allowed: a list")
        return tuple(_convert(members[0], item, (*at, number)) for number, item in enumerate(given))
    if origin is dict:
        if not isinstance(given, Mapping):
            raise ValidationError(at, given, "allowed: an object")
        return {key: _convert(members[1], item, (*at, key)) for key, item in given.items()}
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return _section(hint, given, at)
    return _scalar(hint, given, at)


def _literal(allowed: tuple[Any, ...], given: Any, at: tuple[str | int, ...]) -> Any:
    # By type as well: True is 1.
    if not any(type(one) is type(given) and one == given for one in allowed):
        raise ValidationError(at, given, f"allowed: {', '.join(map(repr, allowed))}")
    return given


def _scalar(kind: Any, given: Any, at: tuple[str | int, ...]) -> Any:
    if kind is Any:
        return given
    if kind is float and type(given) in (int, float):
        return float(given)
    if type(given) is not kind:
        raise ValidationError(at, given, f"allowed: {getattr(kind, '__name__', kind)}")
    return given


def _union(members: tuple[Any, ...], extras: list[Any], given: Any, at: tuple[str | int, ...]) -> Any:
    if given is None and types.NoneType in members:
        return None
    for extra in extras:
        if isinstance(extra, Discriminator):
            wanted = Tag(extra.function(given))
            return _convert(next(member for member in members if wanted in _bare(member)[1]), given, at)
        if isinstance(extra, FieldInfo) and "discriminator" in extra.settings:
            return _convert(_member(members, extra.settings["discriminator"], given, at), given, at)
    problem: ValidationError | None = None
    for member in members:
        try:
            return _convert(member, given, at)
        except ValidationError as error:
            problem = error
    assert problem is not None, "unions have members"
    raise problem


def _member(members: tuple[Any, ...], field: str, given: Any, at: tuple[str | int, ...]) -> Any:
    for member in members:
        if isinstance(given, member):
            return member
        if isinstance(given, Mapping) and given.get(field) in typing.get_args(_hints(member)[field]):
            return member
    raise ValidationError(at, given, f"allowed: one of the sections told apart by {field!r}")


def to_camel(name: str) -> str:
    """Return ``micro_batch_size`` as ``microBatchSize``."""
    first, *others = name.split("_")
    return first + "".join(word.title() for word in others)


def to_snake(name: str) -> str:
    """Return ``microBatchSize`` as ``micro_batch_size``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
