"""`enginebay serve`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from enginebay.cli.console import fail, stderr, stdout
from enginebay.cli.first_keys import about_keys, starting_keys, warn_if_open
from enginebay.cli.installing import install_libraries
from enginebay.cli.settings import (
    ConfigOption,
    load_plugins,
    read_config,
    require_listening,
    require_valid,
)

if TYPE_CHECKING:
    import socket

    from enginebay.config.schema import Config
    from enginebay.plugins import Plugins
    from enginebay.server.access.key_store import KeyStore

logger = logging.getLogger(__name__)


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(metavar="PORT", help="Port to listen on.")] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
) -> None:
    """Load the models of the config and serve them until Ctrl-C."""
    from enginebay.server.http.sockets import CannotListenError, listen_as_configured
    from enginebay.server.http.uvicorn_server import set_up_logging

    flags = {"server.host": host, "server.port": port, "server.log_level": log_level}
    settings = read_config(config, flags)
    level, as_json = settings.server.log_level, settings.server.log_format == "json"
    set_up_logging(level, stderr(), as_json=as_json)
    if port is not None and settings.server.unix_socket:
        where = settings.origins.where(("server", "unix_socket"))
        fail(f"--port has no effect: the server listens on a unix socket ({where})", code=2)
    for notice in settings.origins.notices:
        logger.warning("%s", notice)
    plugins = load_plugins(settings)
    require_valid(settings, plugins)
    require_listening(settings)
    try:
        listening = listen_as_configured(settings)
    except CannotListenError as error:
        fail(str(error))
    with ExitStack() as stack:
        for each in listening:
            stack.enter_context(each)
        install_libraries(settings, plugins)
        keys = starting_keys(settings)
        warn_if_open(settings)
        serve_until_stopped(settings, plugins, keys, listening)


def serve_until_stopped(
    settings: Config, plugins: Plugins, keys: KeyStore, listening: list[socket.socket]
) -> None:
    """Serve the models of a config on these sockets, and say where; until Ctrl-C."""
    from enginebay.cli.loading import Loading
    from enginebay.server.app import create_app
    from enginebay.server.http.uvicorn_server import Server
    from enginebay.server.observe.output import Output
    from enginebay.server.services import services_of

    loading = Loading([model.name for model in settings.models], stderr())
    app = create_app(settings, plugins, keys=keys, report_progress=loading.report)
    output = Output()
    services_of(app).metrics.register(output)

    async def announce() -> None:
        loading.start()
        try:
            await services_of(app).models.wait_until_loaded()
        finally:
            loading.stop()
        _print_summary(app, settings, about_keys(settings, keys), listening)

    server = Server(app, settings.server.log_level, announce)
    try:
        with output:
            server.run(listening)
    except KeyboardInterrupt:
        pass  # uvicorn has stopped the server and passes the signal on
    finally:
        for each in listening:
            each.close()
    if not server.started:
        raise typer.Exit(1)


def _print_summary(app: Any, config: Config, keys: str, sockets: Sequence[socket.socket]) -> None:
    from enginebay.server.http.sockets import scheme_of, unix_path, url_of, urls_elsewhere
    from enginebay.server.running_wings import ask
    from enginebay.server.services import services_of

    console, host, scheme = stdout(), config.server.host, scheme_of(config)
    urls = [url_of(host, each.getsockname()[1], scheme) for each in sockets]
    if path := unix_path(config):
        console.print(f"Enginebay {app.version} listens on {path}; Ctrl-C stops it", style="bold")
    else:
        url = urls[0]
        console.print(f"Enginebay {app.version} listens on {url}; Ctrl-C stops it", style="bold")
        console.print(f"OpenAI URL  {url}/v1")
    if config.server.second_port is not None:
        console.print(f"Second URL  {urls[1]}")
    if not path:
        for wing in services_of(app).wings:
            for label, below in ask(wing, wing.links).items():
                console.print(f"{label:<12}{url}{below}")
        if elsewhere := urls_elsewhere(host, sockets[0].getsockname()[1], scheme):
            console.print(f"Elsewhere   {', '.join(elsewhere)}")
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
    if served.continues_text:
        formats = "no chat template: completions only"
    if served.usual_limit and info.generates:
        formats += f", answers of at most {served.usual_limit} tokens by default"
    if info.generates and not info.constraints:
        formats += ", no structured output"
    return f"{model.config.backend}, context {info.context_length} tokens, {formats}"
