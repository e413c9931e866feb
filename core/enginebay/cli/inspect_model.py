"""`enginebay models inspect`: what is known about a model, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.console import fail, print_table, stderr, table
from enginebay.cli.model_memory import asked_memory, estimated_memory, print_memory
from enginebay.cli.settings import (
    ConfigOption,
    KeyOption,
    UrlOption,
    load_plugins,
    model_at,
    require_valid,
)

if TYPE_CHECKING:
    from enginebay.chat.schemas.explain_bodies import ModelReport, TemplateReport
    from enginebay.cli.client import Target
    from enginebay.config.schema import Config
    from enginebay.plugins import Plugins


def inspect(
    name: Annotated[
        str, typer.Argument(help="A model, as clients name it, or the folder or file of one.")
    ],
    url: UrlOption = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Load a folder or file with this backend instead of asking a server.",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Only what memory it takes; loads nothing.")
    ] = False,
    context_length: Annotated[
        int | None,
        typer.Option(min=1, metavar="TOKENS", help="The memory it takes with this context."),
    ] = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show what memory it takes, the detected formats and why, template features, defaults.

    Asks the running server; a model it lacks, or any model without a server, is loaded for this,
    after its memory has been shown. Does not load it with `--memory`.
    """
    from enginebay.cli.client import target

    if url and backend:
        fail("--url asks a server, --backend loads the model here: use one of the two", code=2)
    server = target(url, config, api_key)
    taken = None if backend else asked_memory(server, name, context_length)
    if taken:
        print_memory(taken)
    report = None if backend or memory else _asked(server, name)
    if report is None and not (memory and taken):
        if server.config is None:
            fail(f"nothing answers at {server.url}; is the server running?")
        plugins = load_plugins(server.config)
        chosen = _chosen(server.config, name, backend, plugins)
        if not taken:
            print_memory(estimated_memory(chosen, plugins, context_length))
        report = None if memory else asyncio.run(_load(chosen, plugins))
    if report:
        _print(report)


def _asked(server: Target, name: str) -> ModelReport | None:
    """A server's report on a model; None if it is to be loaded here instead."""
    from urllib.parse import quote

    import httpx2

    from enginebay.chat.schemas.explain_bodies import ModelReport
    from enginebay.cli.client import ApiError, body_of, connect

    try:
        with connect(*server) as client:
            answer = body_of(client.get(f"/v1/models/{quote(name, safe='')}/inspect"))
        return ModelReport.model_validate(answer)
    except httpx2.TransportError:
        if server.config is None:
            fail(f"nothing answers at {server.url}; is the server running?")
        stderr().print(f"no server answers at {server.url}; loading {name}")
    except ApiError as error:
        not_there = error.status in (401, 403, 404)
        if server.config is None or not (not_there and Path(name).exists()):
            fail(f"{server.url} answers: {error}")
        stderr().print(f"the server at {server.url} does not list this model; loading {name}")
    return None


def _chosen(config: Config, name: str, backend: str | None, plugins: Plugins) -> Config:
    """A config with only the model of this name, or the one at this path."""
    from enginebay.config import schema

    named = [model for model in config.models if model.name == name and not backend]
    if not named and not Path(name).exists():
        names = ", ".join(model.name for model in config.models) or "none"
        fail(f"{name!r} is neither a model of the config ({names}) nor a folder or file")
    if named:
        require_valid(config, plugins)
        return config.model_copy(update={"models": named})
    only = schema.Config(models=[model_at(Path(name), backend, plugins)])
    require_valid(only, plugins)
    return only


async def _load(config: Config, plugins: Plugins) -> ModelReport:
    from enginebay.chat.plan.model_report import model_report
    from enginebay.cli.loading import Loading
    from enginebay.models.registry import Models

    loading = Loading([config.models[0].name], stderr())
    models = Models(config, plugins, loading.report)
    [model] = models.all()
    loading.start()
    try:
        await asyncio.wait({models.load(model)})
        loading.stop()
        if not model.is_loaded:
            fail(f"{model.name} cannot be loaded: {model.error}")
        return model_report(model.served())
    finally:
        loading.stop()
        await models.close()


def _print(report: ModelReport) -> None:
    rows = table("", "")
    rows.show_header = False
    for label, value in (*_of_model(report), *_of_template(report.template)):
        rows.add_row(label, value)
    print_table(rows)


def _of_model(report: ModelReport) -> Iterable[tuple[str, str]]:
    yield "model", f"{report.id} on {report.backend}"
    length = f"{report.context_length} tokens" if report.context_length else "not known"
    vocabulary = "" if "chats" in report.capabilities else f", vocabulary of {report.vocab_size}"
    yield "context", length + vocabulary
    if report.limits:
        yield "limits", report.limits
    if report.embedding_size:
        yield "embeddings", _sizes(report.embedding_size, report.shorter_embeddings)
        yield "prompts", ", ".join(report.prompts) or "none"
    if report.labels:
        yield "labels", ", ".join(report.labels)
    media = [kind for kind in ("images", "audio", "video") if kind in report.capabilities]
    yield "media", ", ".join(media) or "none"
    if report.media_options:
        yield "media options", ", ".join(report.media_options)
    for label, found in (("reasoning", report.reasoning), ("tool calls", report.tools)):
        yield label, f"{found.name or 'none'}: {found.evidence}"
    yield "special tokens", _pairs(report.special_tokens)
    yield "model's defaults", _pairs(report.defaults)
    yield "config's defaults", _pairs(report.configured)
    yield "kept to", "schemas and grammars" if report.constraints else "no schema, no grammar"
    yield "not supported", ", ".join(report.unsupported) or "nothing"
    yield "adapters", ", ".join(report.adapters) or "none"


def _sizes(full: int, shorter: tuple[int, ...] | None) -> str:
    if shorter is None:
        return f"{full} dimensions"
    return f"{full} dimensions, or {', '.join(map(str, shorter)) or 'fewer'}"


def _of_template(template: TemplateReport | None) -> Iterable[tuple[str, str]]:
    if template is None:
        yield "chat template", "none"
        return
    yield "chat template", template.name
    yield "  BOS", template.bos
    if template.mistakes:
        yield "  undefined names", "; ".join(template.mistakes)
    takes = {
        "system messages": template.system,
        "several of them": template.several_systems,
        "later ones": template.later_systems,
        "developer messages": template.developer,
        "tools": template.tools,
        "tool results": template.tool_results,
        "reasoning": template.reasoning,
        "documents": template.documents,
    }
    yield "  takes", ", ".join(label for label, known in takes.items() if known) or "no extras"
    yield "  takes no", ", ".join(label for label, known in takes.items() if not known) or "-"
    yield "  content", "text" if template.content == "string" else "list of parts"
    yield "  call arguments", template.arguments or "not shown"
    yield "  variables", ", ".join(template.variables) or "none"
    yield "  turns end with", template.turn_end or "no marker"
    yield "  stop strings", ", ".join(map(repr, template.stop_strings)) or "none"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items()) or "none"
