"""`enginebay conformance`, where Enginebay is installed in the same environment."""

from typing import Annotated

import typer

from enginebay.cli.console import fail
from enginebay.cli.settings import KeyOption


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
    try:
        from enginebay_conformance.report import check_server
    except ModuleNotFoundError as error:
        fail(
            f"the checks need {error.name}, which is not installed; install it with: "
            "python3 start.py install conformance, or without a checkout: "
            "pip install enginebay-conformance"
        )
    raise typer.Exit(
        check_server(url, model=model, api_key=api_key, groups=group or (), timeout=timeout)
    )
