"""Checks a server and prints the results: on stdout a line for each row, else on stderr."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from textwrap import shorten

import httpx2

from enginebay_conformance.checks import GROUPS
from enginebay_conformance.endpoint import NoSuchModelError, connect
from enginebay_conformance.rows import Row, load_rows
from enginebay_conformance.run_checks import Check, Outcome, Result, run_checks

TIMEOUT = 120.0
"""Seconds without a byte after which a request counts as failed."""


def check_server(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    groups: Sequence[str] = (),
    timeout: float = TIMEOUT,
) -> int:
    """Check a server and print the results, of all groups if none is named; the exit code."""
    if unknown := set(groups) - set(GROUPS):
        return _fail(f"there is no group {unknown.pop()!r}; there are {', '.join(GROUPS)}")
    checks = [check for name in groups or GROUPS for check in GROUPS[name]]
    url = url if "://" in url else f"http://{url}"
    results: list[Result] = []
    try:
        with connect(url, model=model, api_key=api_key, timeout=timeout) as endpoint:
            for check in _shown(checks):
                results += run_checks(endpoint, [check])
    except httpx2.TransportError as error:
        return _fail(f"nothing answers at {url}: {error}")
    except (AssertionError, ValueError, KeyError, NoSuchModelError) as error:
        return _fail(f"{url}/v1/models: {error}")
    _print(results, load_rows())
    return int(any(result.outcome == "fail" for result in results))


def _fail(problem: str) -> int:
    print(problem, file=sys.stderr)
    return 1


def _shown(checks: Sequence[Check]) -> Iterator[Check]:
    """The checks; a terminal shows on its last line which of them runs."""
    terminal = sys.stderr.isatty()
    width = shutil.get_terminal_size().columns - 1
    for number, check in enumerate(checks, 1):
        if terminal:
            line = f"{number} of {len(checks)}: {check.what}"
            print(f"\r{line[:width]:{width}}", end="", file=sys.stderr, flush=True)
        yield check
    if terminal:
        print(f"\r{'':{width}}", end="\r", file=sys.stderr, flush=True)


def _print(results: Sequence[Result], rows: dict[str, Row]) -> None:
    lines: list[tuple[str, str, str, str]] = [("row", "what", "result", "seen")]
    lines += [(id, rows[id].what, outcome, seen) for id, outcome, seen in _by_row(results, rows)]
    lines += [
        ("-", result.check.what, result.outcome, result.seen)
        for result in results
        if not result.check.rows
    ]
    id_width, what_width, outcome_width, _ = (
        max(map(len, column)) for column in zip(*lines, strict=True)
    )
    for id, what, outcome, seen in lines:
        seen = shorten(seen, 200, placeholder=" ...")
        print(f"{id:{id_width}} {what:{what_width}} {outcome:{outcome_width}} {seen}".rstrip())
    counts = [(o, sum(r.outcome == o for r in results)) for o in ("pass", "fail", "skip")]
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts)
    print(f"{len(results)} checks: {words}", file=sys.stderr)


def _by_row(results: Sequence[Result], rows: dict[str, Row]) -> Iterator[tuple[str, Outcome, str]]:
    """The worst result of each row; skipped checks count only if there are no others."""
    for id in rows:
        mine = [result for result in results if id in result.check.rows]
        for outcome in ("fail", "pass", "skip"):
            if found := [result for result in mine if result.outcome == outcome]:
                yield id, found[0].outcome, "; ".join(filter(None, (r.seen for r in found)))
                break
