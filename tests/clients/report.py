"""What was tried with a client, and what came of it."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Error, Page


@dataclass(slots=True)
class Finding:
    """One thing that was tried. `seen` says what was seen, or what went wrong."""

    client: str
    what: str
    seen: str = ""
    works: bool = False


class Report:
    """The findings of one client. With a page, each step ends with a screenshot in `folder`."""

    def __init__(self, client: str, page: Page | None, folder: Path) -> None:
        self.findings: list[Finding] = []
        self._client = client
        self._page = page
        self._folder = folder

    @contextmanager
    def step(self, what: str) -> Iterator[Finding]:
        """Try something: a failure is noted, and what follows is tried all the same."""
        finding = Finding(self._client, what)
        try:
            yield finding
            finding.works = True
        except (AssertionError, ValueError, OSError, Error) as error:
            finding.seen = str(error) or type(error).__name__
        self.add([finding])
        if self._page:
            name = re.sub(r"\W+", "-", f"{self._client} {len(self.findings):02} {what}").lower()
            self._page.screenshot(path=self._folder / f"{name}.png")

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings, and print them."""
        for finding in findings:
            finding.seen = " ".join(finding.seen.split())[:300]
            self.findings.append(finding)
            works = "ok  " if finding.works else "FAIL"
            print(f"{works} {finding.client}: {finding.what}: {finding.seen}", flush=True)


def table(findings: list[Finding]) -> str:
    """All findings as a Markdown table."""
    rows = [("client", "what", "works", "seen"), ("---",) * 4]
    rows += [(f.client, f.what, "yes" if f.works else "**no**", f.seen) for f in findings]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
