"""How rules are written in CEL, which the API server evaluates: ``kubectl apply`` then refuses what the operator would.

What every expression has to reckon with:

* It sees one section, ``self``, and nothing above it. A rule between two sections stands at one that holds both.
* Reading a field that is absent is an error, and an error refuses the job. A field without a default in the definition
  needs ``has()`` first: optional ones, and all fields that a profile may fill in (``crd``). Fields with a default are
  filled in before rules run.
* An error on one side of ``&&`` or ``||`` is swallowed if the other side alone decides, in either order.
* The server bounds an expression's cost when the definition is applied, from ``maxLength``, ``maxItems`` and
  ``maxProperties`` of all that it touches: at most 10 million units per expression and 100 million per definition,
  or it refuses the definition. A loop inside a loop multiplies its lists' limits; a text without a limit counts as
  megabytes. Each job then has a budget of its own while it is checked.
* Integers divide towards zero, ``size()`` of a text counts code points and ``matches`` looks for a part of the text
  unless the pattern has ``^`` and ``$``.
* Lists of ``x-kubernetes-list-type: map`` are equal in any order, and cannot hold a key twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bert_job.model import PRESET_SETTINGS, PRESETS, SETTINGS
from bert_job.section import Section


@dataclass(frozen=True, slots=True)
class CelRule:
    """One validation of the definition: an expression over ``self`` that must be true, and what to say otherwise."""

    expression: str
    message: str
    field: str = ""
    """Path below ``self`` of the field to blame, which the server puts before the message; empty: ``self``."""
    reason: Literal["", "FieldValueForbidden"] = ""
    """The server's word for the kind of mistake; empty: that the value is invalid."""


@dataclass(frozen=True, slots=True)
class Cel:
    """A rule's CEL expression and the field that it is reported at; the rule's message is added later."""

    section: type[Section]
    """What ``self`` is."""
    expression: str
    field: str = ""
    """As in ``CelRule``. It cannot lead into the entries of a list."""
    subject: str = ""
    """Path that begins the message, where ``field`` cannot say it."""

    def with_message(self, allowed: str, next_step: str) -> CelRule:
        """Return the validation."""
        message = describe(allowed, next_step)
        return CelRule(self.expression, f"{self.subject}: {message}" if self.subject else message, self.field)


def describe(allowed: str, next_step: str) -> str:
    """Return the message of a validation rule; the API server itself adds path and value."""
    return f"allowed: {allowed}; next: {next_step}"


def has_cpu(field: str) -> str:
    """Return a CEL expression over the spec: whether the job sets a field of ``cpu``."""
    return f"(has(self.cpu) && has(self.cpu.{field}))"


def is_pinned(place: str) -> str:
    """Return a CEL expression over the spec: whether the job pins its ranks to this kind of place."""
    return f"({has_cpu('pinning')} && self.cpu.pinning == '{place}')"


def architecture(model: str) -> str:
    """Return a CEL expression for the architecture of a model section, as ``resolve_architecture``."""
    others = {name: f"'{size.architecture}'" for name, size in PRESETS.items() if size.architecture != "bert"}
    return f"(has({model}.architecture) ? {model}.architecture : {_by_preset(model, others)}'bert')"


def setting(model: str, name: str, field: str) -> str:
    """Return a CEL expression for what every model has beside its sizes, as ``resolve_settings``.

    model: a model section; name and field: the setting's, in snake_case and camelCase.
    """
    of_presets = {preset: str(settings[name]) for preset, settings in PRESET_SETTINGS.items() if name in settings}
    defaults = {kind: settings[name] for kind, settings in SETTINGS.items()}
    of_modernbert, of_others = defaults.pop("modernbert"), {*defaults.values()}
    assert len(of_others) == 1, "the others are told apart by nothing here"
    default = f"{architecture(model)} == 'modernbert' ? {of_modernbert} : {of_others.pop()}"
    return f"(has({model}.{field}) ? {model}.{field} : {_by_preset(model, of_presets)}{default})"


def _by_preset(model: str, values: Mapping[str, str]) -> str:
    """Return the beginning of a conditional expression: some presets' values, as CEL writes them."""
    parts = []
    for value in dict.fromkeys(values.values()):
        names = ", ".join(f"'{name}'" for name, of_preset in values.items() if of_preset == value)
        parts.append(f"has({model}.preset) && {model}.preset in [{names}] ? {value} : ")
    return "".join(parts)


POSITIONS = setting("self.model", "max_position_embeddings", "maxPositionEmbeddings")
"""``resolve_positions``, over the spec."""
RANKS_PER_WORKER = (
    f"({has_cpu('ranksPerNode')} ? ({is_pinned('numa')} ? ({has_cpu('numaNodes')} ? self.cpu.numaNodes : 1) : "
    f"({has_cpu('sockets')} ? self.cpu.sockets : 1)) : (has(self.slotsPerWorker) ? self.slotsPerWorker : 1))"
)
"""``JobSpec.ranks_per_worker``, over the spec, with 1 for whatever a profile may still fill in."""
PREPARES = "self.stages.exists(stage, has(stage.prepare))"
"""Whether the job makes its own dataset; over the spec."""
