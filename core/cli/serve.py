"""`enginebay serve`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.cli.console import fail, stderr, stdout
from core.cli.first_keys import about_keys, starting_keys, warn_if_open
from core.cli.settings import ConfigOption, load_plugins, read_config, require_valid

if TYPE_CHECKING:
    from core.config.schema import Config


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Port to listen on.")] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
) -> None:
    """Load the models of the config and serve them until Ctrl-C."""
    from core.cli.loading import Loading
    from core.server.http.uvicorn_server import CannotListenError, Server, set_up_logging

    flags = {"server.host": host, "server.port": port, "server.log_level": log_level}
    settings = read_config(config, flags)
    console = stderr()
    set_up_logging(settings.server.log_level, console, as_json=settings.server.log_format == "json")
    plugins = load_plugins(settings)
    require_valid(settings, plugins)
    keys = starting_keys(settings)
    warn_if_open(settings)

    from core.server.app import create_app
    from core.server.services import services_of

    try:
        listening = _listen(settings)
    except CannotListenError as error:
        fail(str(error))
    loading = Loading([model.name for model in settings.models], console)
    app = create_app(settings, plugins, keys=keys, report_progress=loading.report)

    async def announce() -> None:
        loading.start()
        try:
            await services_of(app).models.wait_until_loaded()
        finally:
            loading.stop()
        ports = [each.getsockname()[1] for each in listening]
        _print_summary(app, settings, about_keys(settings, keys), *ports)

    server = Server(app, settings.server.log_level, announce)
    try:
        server.run(listening)
    except KeyboardInterrupt:
        pass  # uvicorn has stopped the server and passes the signal on
    finally:
        for each in listening:
            each.close()
    if not server.started:
        raise typer.Exit(1)


def _listen(config: Config) -> list[socket.socket]:
    """The socket of the server and, if the config wants one, that for clients of Ollama."""
    from core.server.http.uvicorn_server import listen

    server, where = config.server, config.origins.where
    listening = [listen(server.host, server.port, where(("server", "port")))]
    if server.ollama_port is not None:
        source = where(("server", "ollama_port"))
        other = "as server.ollama_port, or leave that out"
        try:
            listening.append(listen(server.host, server.ollama_port, source, other=other))
        except BaseException:
            listening[0].close()
            raise
    return listening


def _print_summary(
    app: Any, config: Config, keys: str, port: int, ollama_port: int | None = None
) -> None:
    from core.server.http.uvicorn_server import url_of, urls_elsewhere
    from core.server.services import services_of

    console, url = stdout(), url_of(config.server.host, port)
    console.print(f"Enginebay {app.version} listens on {url}; Ctrl-C stops it", style="bold")
    console.print(f"OpenAI URL  {url}/v1")
    if ollama_port is not None:
        console.print(f"Ollama URL  {url_of(config.server.host, ollama_port)}")
    console.print(f"Page        {url}")
    if elsewhere := urls_elsewhere(config.server.host, port):
        console.print(f"Elsewhere   {', '.join(elsewhere)}")
    console.print(f"API docs    {url}/docs")
    console.print(f"API keys    {keys}")
    models = services_of(app).models
    for model in models.listed():
        console.print(f"Model       {model.name}: {_about(model)}")
    if not models.listed():
        console.print(
            f"Model       none; put one into {models.folder.root}, or add one under "
            f"`models` in {config.origins.file}"
        )


def _about(model: Any) -> str:
    if model.state == "unloaded" and not model.error:
        return f"loaded on {model.config.load}"
    if model.state != "ready":
        return f"{model.state}: {model.error}"
    served = model.served()
    info = served.info
    if info.chats:
        length = f"{model.context_length} tokens" if model.context_length else "not known"
        return f"{model.config.backend}, context {length}, messages are passed on unrendered"
    formats = f"reasoning {served.reasoning_name or 'none'}, tools {served.tools_name or 'none'}"
    if info.generates and not info.constraints:
        formats += ", no structured output"
    return f"{model.config.backend}, context {info.context_length} tokens, {formats}"
