"""Expressions in the dialect of Lark that llguidance compiles.

https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import groupby

from enginebay.contract import grammar as g
from enginebay.grammar.schema_normalise import rewritten

# White space between the tokens of JSON: a space, or a new line and some indentation. Weak models
# would go on with it for ever. `\u` is no escape here: a key written with it would pass for one
# that the schema does not know.
_JSON = {
    "whitespace_pattern": r"[ \t]|\r?\n[ \t]{0,20}",
    "json_allowed_escapes": '"\\bfnrt',
}


def to_lark(
    grammar: g.Grammar,
    special_tokens: Mapping[str, int],
    end_token_ids: Collection[int] = frozenset(),
) -> str:
    """The Lark grammar of an expression, for a tokenizer with these special tokens by their text.

    `end_token_ids`: those of them that end a completion.
    """
    writer = _Writer(special_tokens, end_token_ids)
    start = writer.write(grammar)
    return "\n".join([f"start: {start}", *writer.rules, ""])


class _Writer:
    """Collects rules; what it returns is an expression in terms of them."""

    def __init__(self, special_tokens: Mapping[str, int], end_token_ids: Collection[int]) -> None:
        self.rules: list[str] = []
        self._known: dict[str, str] = {}
        self._special_tokens = special_tokens
        self._end_token_ids = end_token_ids
        texts = sorted(special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._writers: Mapping[type, Callable[..., str]] = {
            g.Text: lambda node: self._text(node.text),
            g.Pattern: lambda node: self._terminal(_regex(node.pattern)),
            g.Json: self._json,
            g.Lark: lambda node: self._rule(f"%lark {{\n{node.source}\n}}"),
            g.Sequence: lambda node: _group(map(self.write, node.items), " "),
            # A rule of its own: groups in groups are limited.
            g.Choice: lambda node: self._rule(_group(map(self.write, node.items), " | ")),
            g.Repeat: self._repeat,
            g.Free: self._free,
            g.UpTo: self._up_to,
            g.Until: self._until,
        }

    def write(self, node: g.Grammar) -> str:
        return self._writers[type(node)](node)

    def _rule(self, body: str, *, lazy: bool = False) -> str:
        return self._define("r", body, "[lazy]" if lazy else "")

    def _terminal(self, body: str) -> str:
        return self._define("T", body, "")

    def _define(self, letter: str, body: str, attributes: str) -> str:
        key = f"{letter}{attributes}: {body}"
        if key not in self._known:
            name = self._known[key] = f"{letter}{len(self._known)}"
            self.rules.append(f"{name}{attributes}: {body}")
        return self._known[key]

    def _text(self, text: str) -> str:
        return _group(map(self._piece, self._pieces(text)), " ")

    def _piece(self, piece: str) -> str:
        token_id = self._special_tokens.get(piece)
        if token_id is None:
            return json.dumps(piece)
        return '""' if token_id in self._end_token_ids else f"<[{token_id}]>"

    def _pieces(self, text: str) -> list[str]:
        pieces, at = [], 0
        for found in self._special.finditer(text):
            pieces += [text[at : found.start()], found[0]]
            at = found.end()
        return [piece for piece in (*pieces, text[at:]) if piece]

    def _json(self, node: g.Json) -> str:
        schema = json.loads(node.schema)
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        schema = {**rewritten(schema), "x-guidance": _JSON}
        return self._rule(f"%json {json.dumps(schema)}")

    def _repeat(self, node: g.Repeat) -> str:
        most = "" if node.most is None else node.most
        return f"{self._rule(self.write(node.item))}{{{node.least},{most}}}"

    def _free(self, node: g.Free) -> str:
        tail = self._rule(self._tail(node))
        if not node.first:
            return tail
        going, ending = _going_and_ending(node)
        special = [f"{each} {tail}" for each in self._opened_by_special(going)]
        special += self._opened_by_special(ending)
        # Text that does not begin as one of `first`, alone or up to where one of the cases opens.
        beginnings = self._beginnings(node.first)
        items = [f"{self.write(case.opening)} {self.write(case.rest)}" for case in node.first]
        for case in node.cases:
            text = self._terminal(f"{self._any()} {self._literal(case.opening)}{beginnings}")
            behind = f" {tail}" if case in going else ""
            items.append(f"{self._rule(text, lazy=True)} {self.write(case.rest)}{behind}")
        text = self._terminal(f"{self._some()}{beginnings}")
        after_text = [*special, *(f"{each} {tail}" for each in self._specials(node.cases))]
        items.append(f"{text} ({' | '.join(after_text)})?" if after_text else text)
        first_specials = self._specials([*node.first, *node.cases])
        items += [*special, *(f"{each} {tail}" for each in first_specials)]
        return self._rule(f"({' | '.join(items)})?")

    def _tail(self, node: g.Free) -> str:
        going, ending = _going_and_ending(node)
        items = [*self._opened(going), self._some(), *self._specials(node.cases)]
        text = f"({' | '.join(items)})*"
        if not ending:
            return text
        text = self._rule(text)
        return _group([text, *(f"{text} {each}" for each in self._opened(ending))], " | ")

    def _up_to(self, node: g.UpTo) -> str:
        left_out = self._holding(node.without)
        head, *rest = self._pieces(node.end)
        reserved = {self._special_tokens[head]} if head in self._special_tokens else set[int]()
        for text in node.without:
            kept_out = (piece for piece in self._pieces(text) if piece in self._special_tokens)
            reserved |= {self._special_tokens[piece] for piece in kept_out}
        # Text is allowed before special tokens only: after other text it would continue with the
        # end of what is left out.
        text = f"{self._terminal(f'{self._some()}{left_out}')}?"
        beyond = [*self._opened_by_special(node.cases), *self._specials(node.cases, *reserved)]
        items = [*self._opened_by_text(node.cases, left_out)]
        items += [f"{text} {each}" for each in beyond]
        if head in self._special_tokens:
            last = f"{text} {self._text(node.end)} | {self._lazy(json.dumps(node.end), left_out)}"
        else:
            end = self._lazy(json.dumps(head), left_out)
            last = _group([end, *map(self._piece, rest)], " ")
        return f"({' | '.join(items)})* ({last})" if items else f"({last})"

    def _until(self, node: g.Until) -> str:
        kept = [self._any(), *(self._terminal(_regex(each)) for each in node.all)]
        within = "|".join(map(re.escape, _shortest({node.end, *node.without})))
        none = [*node.none, f"(?s:.*)(?:{within})(?s:.*)"]
        left_out = [f"~{self._terminal(_regex(each))}" for each in none]
        text = self._terminal(" & ".join([*kept, *left_out]))
        head, *rest = self._pieces(node.end)
        if head in self._special_tokens:
            return _group([text, *map(self._piece, (head, *rest))], " ")
        body = self._terminal(f"{text} {json.dumps(head)}")
        # Only a special token after it can end a text that is not lazy.
        last = body if rest else self._rule(body, lazy=True)
        return _group([last, *map(self._piece, rest)], " ")

    def _opened(self, cases: Sequence[g.Case]) -> list[str]:
        """Text up to where a case opens, and its rest; for each case.

        A special token may also be spelled out: in the answer's text the two look the same.
        """
        return [*self._opened_by_special(cases), *self._opened_by_text(cases)]

    def _opened_by_text(self, cases: Sequence[g.Case], left_out: str = "") -> list[str]:
        return [
            f"{self._lazy(self._literal(case.opening), left_out)} {self.write(case.rest)}"
            for case in cases
        ]

    def _lazy(self, end: str, left_out: str = "") -> str:
        """Text up to its first `end`."""
        text = f"{self._any()} {end}"
        if left_out:
            text = self._terminal(f"{self._terminal(text)}{left_out}")
        return self._rule(text, lazy=True)

    def _holding(self, texts: Sequence[str]) -> str:
        """Terminal terms that exclude texts containing one of these."""
        within = "|".join(map(re.escape, _shortest(set(texts))))
        return f" & ~{self._terminal(_regex(f'(?s:.*)(?:{within})(?s:.*)'))}" if texts else ""

    def _opened_by_special(self, cases: Sequence[g.Case]) -> list[str]:
        special = [case for case in cases if self._starts_special(case.opening)]
        return [f"{self._from_special(case.opening)} {self.write(case.rest)}" for case in special]

    def _specials(self, cases: Sequence[g.Case], *reserved: int) -> list[str]:
        """Any special token but those that open one of the cases, if there is one."""
        taken = {*reserved, *self._end_token_ids}
        for case in cases:
            if head := self._special_pieces(case.opening)[:1]:
                taken.add(self._special_tokens[head[0]])
        others = sorted(set(self._special_tokens.values()) - taken)
        items = [f"<[{_ranges(others)}]>"] if others else []
        return items + self._followed_otherwise(cases, *reserved)

    def _followed_otherwise(self, cases: Sequence[g.Case], *reserved: int) -> list[str]:
        """Special tokens that open a case by the text after them, with other text there."""
        behind: dict[int, dict[str, None]] = {}
        for case in cases:
            head, *rest = self._special_pieces(case.opening) or [""]
            text = rest[0] if rest and rest[0] not in self._special_tokens else ""
            if head:
                behind.setdefault(self._special_tokens[head], {})[text] = None
        items = []
        for token_id, texts in behind.items():
            if "" not in texts and token_id not in reserved:
                begins = (self._terminal(f"{json.dumps(text)} {self._any()}") for text in texts)
                other = self._terminal(" & ~".join([self._some(), *begins]))
                items.append(f"<[{token_id}]> {other}")
        return items

    def _special_pieces(self, opening: g.Text | g.Pattern) -> list[str]:
        """The pieces of an opening from its first special token on: in front of that is text."""
        pieces = self._pieces(opening.text) if isinstance(opening, g.Text) else []
        places = (n for n, piece in enumerate(pieces) if piece in self._special_tokens)
        return pieces[next(places, len(pieces)) :]

    def _from_special(self, opening: g.Text | g.Pattern) -> str:
        return _group(map(self._piece, self._special_pieces(opening)), " ")

    def _starts_special(self, opening: g.Text | g.Pattern) -> bool:
        return bool(self._special_pieces(opening))

    def _literal(self, opening: g.Text | g.Pattern) -> str:
        if isinstance(opening, g.Pattern):
            return self._terminal(_regex(opening.pattern))
        return json.dumps(opening.text)

    def _beginnings(self, cases: Sequence[g.Case]) -> str:
        """Terminal terms that exclude texts beginning like one of these."""
        plain = [case.opening for case in cases if not self._starts_special(case.opening)]
        return "".join(
            f" & ~{self._terminal(f'{self._literal(each)} {self._any()}')}" for each in plain
        )

    def _any(self) -> str:
        return self._terminal("/(?s:.*)/")

    def _some(self) -> str:
        return self._terminal("/(?s:.+)/")


def _going_and_ending(node: g.Free) -> tuple[list[g.Case], list[g.Case]]:
    """The cases that text may follow, and those that nothing follows."""
    going = [case for case in node.cases if case.goes_on or not node.once]
    return going, [case for case in node.cases if case not in going]


def _group(items: "map[str] | list[str]", between: str) -> str:
    parts = list(items)
    return f"({between.join(parts)})" if parts else '""'


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as `1-3,7`."""
    runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    ends = [[number for _, number in run] for _, run in runs]
    return ",".join(f"{run[0]}-{run[-1]}" for run in ends)


def _shortest(texts: Collection[str]) -> list[str]:
    """Those that hold none of the others."""
    return sorted(a for a in texts if not any(b != a and b in a for b in texts))


def _regex(pattern: str) -> str:
    """A regular expression as Lark writes one: slashes and line breaks escaped."""
    escaped = re.sub(r"\\.|/|\n|\r", _escape, pattern, flags=re.DOTALL)
    return f"/{escaped}/" if escaped else '""'


def _escape(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n"}.get(found[0], found[0])
