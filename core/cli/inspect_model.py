"""`enginebay models inspect`: what is known of a model, and how."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.cli.console import fail, print_table, stderr, table
from core.cli.settings import ConfigOption, KeyOption, load_plugins, require_valid

if TYPE_CHECKING:
    from core.chat.schemas.explain_bodies import ModelReport, TemplateReport
    from core.config.schema import Config


def inspect(
    name: Annotated[str, typer.Argument(help="A model, as clients name it.")],
    url: Annotated[str | None, typer.Option(metavar="URL", help="A running server.")] = None,
    config: ConfigOption = None,
    api_key: KeyOption = None,
) -> None:
    """Show formats found and on what evidence, template features, special tokens, defaults.

    Asks the running server; without one, the model is loaded for this.
    """
    from openai import APIConnectionError, APIError

    from core.cli.client import connect, message_of, target

    where, api_key, settings = target(url, config, api_key)
    try:
        with connect(where, api_key) as client:
            answer: Any = client.get(f"/models/{name}/inspect", cast_to=object)
        _print(_report(answer))
    except APIConnectionError:
        if settings is None:
            fail(f"nothing answers at {where}; is the server running?")
        stderr().print(f"no server answers at {where}; loading {name}")
        _print(asyncio.run(_load(settings, name)))
    except APIError as error:
        fail(f"{where} answers: {message_of(error)}")


def _report(answer: Any) -> ModelReport:
    from core.chat.schemas.explain_bodies import ModelReport

    return ModelReport.model_validate(answer)


async def _load(config: Config, name: str) -> ModelReport:
    from core.chat.plan.model_report import model_report
    from core.cli.loading import Loading
    from core.models.registry import Models

    chosen = [model for model in config.models if model.name == name]
    if not chosen:
        names = ", ".join(model.name for model in config.models) or "none"
        fail(f"the config has no model {name!r}; it has: {names}")
    plugins = load_plugins(config)
    require_valid(config, plugins)
    loading = Loading([name], stderr())
    models = Models(config.model_copy(update={"models": chosen}), plugins, loading.report)
    [model] = models.all()
    loading.start()
    try:
        await asyncio.wait({models.load(model)})
        loading.stop()
        if not model.is_loaded:
            fail(f"{name} cannot be loaded: {model.error}")
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
    for label, found in (("reasoning", report.reasoning), ("tool calls", report.tools)):
        yield label, f"{found.name or 'none'}: {found.evidence}"
    yield "special tokens", _pairs(report.special_tokens)
    yield "model's defaults", _pairs(report.defaults)
    yield "config's defaults", _pairs(report.configured)
    yield "kept to", "schemas and grammars" if report.constraints else "no schema, no grammar"
    yield "not supported", ", ".join(report.unsupported) or "nothing"
    yield "adapters", ", ".join(report.adapters) or "none"


def _of_template(template: TemplateReport | None) -> Iterable[tuple[str, str]]:
    if template is None:
        yield "chat template", "none"
        return
    yield "chat template", template.name
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
