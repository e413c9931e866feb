"""`enginebay conformance`: how well a running server follows OpenAI's protocol, and other APIs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.console import fail, print_table, stderr, table
from enginebay.cli.settings import KeyOption

if TYPE_CHECKING:
    from enginebay.testing.conformance import Outcome, Result, Row


def conformance(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="URL of a running server, of any kind.")
    ],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model to use. [the first]")
    ] = None,
    api_key: KeyOption = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="API",
            help="Only this API: openai, responses, messages, ollama or kobold. Repeatable.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Read timeout in seconds.")
    ] = 120,
) -> None:
    """Check any server, by the rows of docs/reference/conformance.md; exit code 1 if one fails."""
    import httpx2

    from enginebay.testing.conformance import (
        GROUPS,
        NoSuchModelError,
        connect,
        load_rows,
        run_checks,
    )

    if unknown := set(group or ()) - set(GROUPS):
        fail(f"there is no group {unknown.pop()!r}; there are {', '.join(GROUPS)}")
    checks = [check for name in group or GROUPS for check in GROUPS[name]]
    url = url if "://" in url else f"http://{url}"
    results: list[Result] = []
    try:
        with connect(url, model=model, api_key=api_key, timeout=timeout) as endpoint:
            console = stderr()
            with console.status("") as status:
                for number, check in enumerate(checks, 1):
                    status.update(f"{number} of {len(checks)}: {check.what}")
                    results += run_checks(endpoint, [check])
    except httpx2.TransportError as error:
        fail(f"nothing answers at {url}: {error}")
    except (AssertionError, ValueError, KeyError, NoSuchModelError) as error:
        fail(f"{url}/v1/models: {error}")
    _print(results, load_rows())
    if any(result.outcome == "fail" for result in results):
        raise typer.Exit(1)


def _print(results: Sequence[Result], rows: dict[str, Row]) -> None:
    lines = table("row", "what", "result", "seen")
    for id, outcome, seen in _by_row(results, rows):
        lines.add_row(id, rows[id].what, outcome, shorten(seen, 200, placeholder=" ..."))
    for result in results:
        if not result.check.rows:
            seen = shorten(result.seen, 200, placeholder=" ...")
            lines.add_row("-", result.check.what, result.outcome, seen)
    print_table(lines)
    counts = [(o, sum(r.outcome == o for r in results)) for o in ("pass", "fail", "skip")]
    words = ", ".join(f"{count} {outcome}" for outcome, count in counts)
    stderr().print(f"{len(results)} checks: {words}")


def _by_row(results: Sequence[Result], rows: dict[str, Row]) -> Iterator[tuple[str, Outcome, str]]:
    """The worst result of each row; skipped checks count only if there are no others."""
    for id in rows:
        mine = [result for result in results if id in result.check.rows]
        for outcome in ("fail", "pass", "skip"):
            if found := [result for result in mine if result.outcome == outcome]:
                yield id, found[0].outcome, "; ".join(filter(None, (r.seen for r in found)))
                break
