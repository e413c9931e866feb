"""Server-side overrides of the sampling fields of requests.

The rules are TabbyAPI's: an override is the value of requests that do not send the field; with
`force` it applies to all requests; with `additive` a list or mapping is merged with what a request
sends.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from enginebay.config.neutral_values import asks_for_nothing
from enginebay.config.sampling import EntryError, OverrideFields, read_entry
from enginebay.config.sampling_fields import SamplingFields
from enginebay.contract.errors import InvalidRequestError

Body = TypeVar("Body", bound=SamplingFields)
Source = Literal[
    "request", "config", "model", "preset", "additive", "forced", "template", "key", "default"
]
"""`preset`: from the model's overrides; `additive`: merged with the request's;
`forced`: overrides the request's;
`key`: the limit of the API key."""

MEANINGLESS = frozenset(
    (
        "cfg_scale",
        "generate_window",
        "guidance_scale",
        "negative_prompt",
        "repetition_decay",
        "speculative_ngram",
    )
)
"""TabbyAPI fields that no engine here supports; its files have them, mostly switched off."""

_TEMPERATURES = ("min_temp", "max_temp")
_MOST_PROBLEMS = 20  # reported at most: close matches for each name are slow


@dataclass(frozen=True, slots=True)
class Override:
    """The value of a field; None switches it off."""

    value: Any
    force: bool = False
    additive: bool = False

    @property
    def source(self) -> Source:
        """Its name in the explain route."""
        if self.force:
            return "forced"
        return "additive" if self.additive else "preset"

    def under(self, other: "Override") -> "Override":
        """Both combined, where `other` takes precedence."""
        if self.force and not other.force:
            return self
        if self.additive and other.additive:
            return Override(joined(self.value, other.value), additive=True)
        return other


def joined(first: Any, second: Any) -> Any:
    """Merge two lists, or two mappings of which the second takes precedence; None is empty."""
    if isinstance(first, dict) or isinstance(second, dict):
        return {**(first or {}), **(second or {})}
    return list(dict.fromkeys([*(first or ()), *(second or ())]))


class Overrides:
    """Overrides of fields, in TabbyAPI's form: `{"top_k": {"override": 0}}`.

    Fields may have any of their names. `written` are the effective entries, `notes` what has no
    effect. Raises `OverridesError`.
    """

    def __init__(self, entries: Mapping[str, Any] | None = None) -> None:
        self.written: dict[str, Any] = {}
        self.notes: list[str] = []
        self._fields: dict[str, Override] = {}
        problems = []
        for name, entry in (entries or {}).items():
            try:
                self._read(name, entry)
            except EntryError as error:
                problems.append(((name, *error.path), str(error)))
                if len(problems) == _MOST_PROBLEMS:
                    break
        if problems:
            raise OverridesError(problems)
        try:
            OverrideFields(**self._values()).sampling_fields()
        except InvalidRequestError as error:
            raise OverridesError([((error.param or "",), error.message)]) from error

    def _read(self, name: str, written: Any) -> None:
        if name in MEANINGLESS:
            if isinstance(written, dict) and not asks_for_nothing(name, written.get("override")):
                self.notes.append(f"{name} has no effect here")
            return
        if isinstance(written, dict) and written.get("override") is None:
            return
        field, entry = read_entry(name, written)
        additive = bool(entry.additive)
        if additive and not isinstance(entry.override, list | dict | None):
            self.notes.append(f"additive has no effect on {name}, which is not a list")
            additive = False
        self.written[name] = written
        new = Override(entry.override, bool(entry.force), additive and not entry.force)
        self._fields[field] = self._fields[field].under(new) if field in self._fields else new

    def over(self, other: "Overrides") -> "Overrides":
        """These over `other`."""
        both = Overrides()
        both.written = {**other.written, **self.written}
        both._fields = dict(other._fields)
        for name, override in self._fields.items():
            under = both._fields.get(name)
            both._fields[name] = under.under(override) if under else override
        return both

    def check_vocabulary(self, vocab_size: int) -> None:
        """`InvalidRequestError` for a token id that a model of this size does not have."""
        OverrideFields(**self._values()).check_token_ids(vocab_size)

    def applied_to(self, body: Body, beneath: Mapping[str, Any]) -> Body:
        """The request with these overrides applied.

        `beneath`: `SamplingParams` fields used where neither sets a value.
        """
        fields = type(body).model_fields
        own = {name: override for name, override in self._fields.items() if name in fields}
        if not own:
            return body
        changed: dict[str, Any] = {}
        for name, override in own.items():
            value = getattr(body, name) if name in body.model_fields_set else None
            if override.additive:
                changed[name] = joined(
                    beneath.get(name) if value is None else value, override.value
                )
            elif override.force or value is None:
                changed[name] = override.value
        if (temperature := own.get("temperature")) and temperature.force:
            others = fields.keys() & {*_TEMPERATURES, "do_sample"}
            changed |= dict.fromkeys(others - own.keys())
        return body.model_copy(update=changed)

    def denied(self, body: Body) -> list[str]:
        """Names of fields for which a request asks for other values than these overrides leave."""
        got = self.applied_to(body, {})
        return [
            name
            for name in {**self._fields, **dict.fromkeys(_TEMPERATURES)}
            if name in body.model_fields_set
            and (asked := getattr(body, name)) is not None
            and not self._leaves(name, asked, getattr(got, name))
        ]

    def _leaves(self, name: str, asked: Any, got: Any) -> bool:
        """Whether what was asked for is what there is, or with `additive` part of it."""
        if name in self._fields and self._fields[name].additive:
            return not isinstance(asked, dict) or asked.items() <= got.items()
        return bool(asked == got)

    def gives(self, name: str, value: object) -> bool:
        """Whether these overrides give the field this value."""
        return name in self._fields and self._fields[name].value == value

    def sources(self) -> Iterator[tuple[str, Source]]:
        """The `SamplingParams` fields that these set and their source, in ascending precedence."""
        kinds: dict[Source, dict[str, Any]] = {"preset": {}, "additive": {}, "forced": {}}
        for name, override in self._fields.items():
            kinds[override.source][name] = override.value
        for source, values in kinds.items():
            for name in OverrideFields(**values).sampling_fields():
                yield name, source

    def _values(self) -> dict[str, Any]:
        return {name: override.value for name, override in self._fields.items()}


class OverridesError(ValueError):
    """Invalid overrides; `problems` are paths and messages."""

    def __init__(self, problems: list[tuple[tuple[str | int, ...], str]]) -> None:
        super().__init__(problems[0][1])
        self.problems = problems
