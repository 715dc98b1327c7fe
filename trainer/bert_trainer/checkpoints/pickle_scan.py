"""Whether the pickle in a file of ``torch.save`` is one of tensors by name, told before any of it is carried out.

PyTorch's restricted reader runs no code of a file, but it does what a file says as often as the file says it: copies of
one long list, keys whose hash takes exponential time, memory by the terabyte. The scan follows the same operations with
stand-ins for the values, and refuses what weights, optimizer states and settings do not need.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from itertools import chain
from typing import IO, Any

MAX_OPERATIONS = 300_000
"""Of which each may make an object of some 200 bytes from a single byte; BERT-large's with its optimizer's state and
master weights are 76,000. Values that a call copies count as well."""

_REBUILD = frozenset(
    f"torch._utils {name}"
    for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter", "_rebuild_parameter_with_state")
)
_REBUILD_SUBCLASS = "torch._tensor _rebuild_from_type_v2"
"""Calls what it is given: of a tensor with attributes, one of the others."""
_MAP = "collections OrderedDict"
_CALLED = _REBUILD | {_REBUILD_SUBCLASS, _MAP, "torch Size", "torch device", "torch.nn.parameter Parameter"}
_NAMED = frozenset(
    [
        *("torch Tensor", "torch.serialization _get_layout"),
        *(f"torch {kind}Storage" for kind in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char")),
        *(f"torch {kind}Storage" for kind in ("Byte", "Bool")),
        *(f"torch {kind}" for kind in ("float16", "bfloat16", "float32", "float64", "int64", "int32", "uint8", "bool")),
    ]
)
"""May be mentioned, not called."""

_LEAF: Any = ()
"""Stands for a number, a text, or nothing; a container's is the list of what stands for its values."""
_LEAVES = frozenset(
    (
        "NONE",
        "NEWFALSE",
        "NEWTRUE",
        "BININT",
        "BININT1",
        "BININT2",
        "BINFLOAT",
        "BINUNICODE",
        "SHORT_BINSTRING",
        "LONG1",
    )
)
_EMPTY = frozenset(("EMPTY_TUPLE", "EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET"))
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUTS, _GETS = frozenset(("BINPUT", "LONG_BINPUT")), frozenset(("BINGET", "LONG_BINGET"))


class RefusedPickle(Exception):
    """A pickle that is not loaded; the message continues with "; allowed: "."""


def scan_pickles(pickles: IO[bytes], count: int = 1) -> None:
    """Check the operations of consecutive pickles without executing them.

    Raises:
        RefusedPickle: they hold what no weights need.
        ValueError: there are not that many.
        LookupError: an operation needs a value that is not there.
    """
    scan = _Scan()
    for operation, argument in chain.from_iterable(_operations(pickles) for _ in range(count)):
        scan.take(operation, argument)


def _operations(pickles: IO[bytes]) -> Iterator[tuple[str, Any]]:
    yield "START", None
    for operation, argument, _ in pickletools.genops(pickles):
        yield operation.name, argument


class _Scan:
    """The stack machine of ``torch._weights_only_unpickler``, without values."""

    def __init__(self) -> None:
        self._num_operations = 0
        self._start()

    def _start(self) -> None:
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def take(self, operation: str, argument: Any) -> None:
        """Follow one operation."""
        self._count(1)
        if operation in _LEAVES:
            self._stack.append(_LEAF)
        elif operation in _EMPTY:
            self._stack.append([])
        elif operation in _PUTS:
            self._memo[argument] = self._stack[-1]
        elif operation in _GETS:
            self._stack.append(self._memo[argument])
        elif operation in _TUPLES:
            number = _TUPLES[operation]
            self._stack[-number:] = [self._stack[-number:]]
        elif operation in ("GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID"):
            getattr(self, f"_{operation.lower()}")(argument)
        else:
            self._fill(operation)

    def _fill(self, operation: str) -> None:
        if operation == "START":
            self._start()
        elif operation == "MARK":
            self._outer.append(self._stack)
            self._stack = []
        elif operation == "TUPLE":
            items = self._to_mark()
            self._stack.append(items)
        elif operation == "APPEND":
            item = self._stack.pop()
            self._extend([item])
        elif operation == "APPENDS":
            self._extend(self._to_mark())
        elif operation in ("SETITEM", "SETITEMS"):
            items = [self._stack.pop(), self._stack.pop()][::-1] if operation == "SETITEM" else self._to_mark()
            # A tuple of tuples of tuples, each twice in the next, takes years to hash.
            if any(key is not _LEAF for key in items[::2]):
                raise RefusedPickle("a map with keys that are neither text nor numbers")
            self._extend(items[1::2])
        elif operation not in ("PROTO", "STOP"):
            raise ValueError(f"{operation} stands in no file of torch.save")

    def _global(self, argument: str) -> None:
        if argument not in _CALLED | _NAMED:
            name = argument.replace(" ", ".").removeprefix("__builtin__.").removeprefix("builtins.")
            raise RefusedPickle(f"a pickled {name}, which would run code or take memory when it is loaded")
        self._stack.append(argument)

    def _reduce(self, _: object) -> None:
        arguments, called = self._stack.pop(), self._stack.pop()
        self._check_call(called, arguments)
        self._count_copies(arguments)
        self._stack.append([])

    _newobj = _reduce

    def _check_call(self, called: Any, arguments: Any) -> None:
        if not isinstance(called, str) or called not in _CALLED or not isinstance(arguments, list):
            raise RefusedPickle("a call of something else than PyTorch's functions for tensors")
        if called == _MAP and arguments:
            raise RefusedPickle("a map that is made from another value")
        if called == _REBUILD_SUBCLASS and not (arguments and _is_one_of(arguments[0], _REBUILD)):
            raise RefusedPickle("a tensor that is made in another way than torch.save writes")

    def _build(self, _: object) -> None:
        state = self._stack.pop()
        self._count_copies([state])
        self._extend([state])

    def _binpersid(self, _: object) -> None:
        # Its parts are keys of maps, too: type, name and place of a tensor's elements.
        for part in self._stack.pop():
            inner = part if isinstance(part, list) else []
            if any(item is not _LEAF for item in inner):
                raise RefusedPickle("elements of a tensor under a name that is neither text nor a number")
        self._stack.append([])

    def _to_mark(self) -> list[Any]:
        items, self._stack = self._stack, self._outer.pop()
        return items

    def _extend(self, items: list[Any]) -> None:
        container = self._stack[-1]
        if not isinstance(container, list):
            raise ValueError("items for something that holds none")
        container.extend(items)

    def _count_copies(self, values: list[Any]) -> None:
        """Count what a call may copy: the values that it is given, and what they hold themselves."""
        self._count(len(values))
        for value in values:
            if isinstance(value, list):
                self._count(len(value))
                self._count(sum(len(inner) for inner in value if isinstance(inner, list)))

    def _count(self, number: int) -> None:
        self._num_operations += number
        if self._num_operations > MAX_OPERATIONS:
            raise RefusedPickle(f"more than {MAX_OPERATIONS} operations of pickle")


def _is_one_of(value: Any, names: frozenset[str]) -> bool:
    return isinstance(value, str) and value in names
