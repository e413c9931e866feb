"""`enginebay run`: a model of a hub or of this machine, served and in a chat, without a config."""

from __future__ import annotations

import errno
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from enginebay.cli.console import fail, stderr
from enginebay.cli.download import download_shown
from enginebay.cli.first_keys import starting_keys, warn_if_open
from enginebay.cli.installing import require_libraries
from enginebay.cli.private_server import serving
from enginebay.cli.serve import serve_until_stopped
from enginebay.cli.settings import (
    ConfigOption,
    HubTokenOption,
    load_plugins,
    model_at,
    require_valid,
)

if TYPE_CHECKING:
    import socket

    from enginebay.config.keys import Key
    from enginebay.config.schema import Config, ServerConfig
    from enginebay.models.downloads import Form, HubName
    from enginebay.plugins import Plugins
    from enginebay.server.access.key_store import KeyStore


def run(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model of a hub, such as Qwen/Qwen3-8B-GGUF:Q4_K_M, or a file or folder.",
        ),
    ],
    message: Annotated[
        str | None,
        typer.Argument(help="Send this message and exit; without it, chat interactively."),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Only serve it, as where nobody is at a terminal.")
    ] = False,
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Address to listen on.")] = None,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=0, max=65535, help="Port to listen on. [5000, or a free one]"
        ),
    ] = None,
    backend: Annotated[
        str | None, typer.Option(metavar="NAME", help="Backend to use. [detected from the files]")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            "--chat-template",
            metavar="NAME",
            help="Chat template to use: a name, or a file. [the model's]",
        ),
    ] = None,
    token: HubTokenOption = None,
    config: ConfigOption = None,
) -> None:
    """Download a model unless it is here, serve it, and chat with it in the terminal.

    Ctrl-C stops a download; the same command goes on with it. Needs no config: of one that is
    here, the settings of the server and the folder of models are used, not its models.
    """
    from enginebay.cli.client import configured
    from enginebay.server.http.uvicorn_server import set_up_logging

    settings = configured(config)
    chats = message is not None or (not serve and sys.stdin.isatty())
    set_up_logging("error" if chats else settings.server.log_level, stderr())
    plugins = load_plugins(settings)
    path, name = _located(model, settings, plugins, backend, token or None)
    found = model_at(path, backend, plugins).model_copy(update={"name": name})
    if chat_template:
        found = found.model_copy(update={"chat_template": chat_template})
    require_libraries(found.backend, plugins)
    with _listen(settings.server, host, port) as listening:
        where = {"host": host or settings.server.host, "port": listening.getsockname()[1]}
        server = settings.server.model_copy(update={**where, "second_port": None})
        settings = settings.model_copy(update={"models": [found], "server": server})
        require_valid(settings, plugins)
        if chats:
            _chat(settings, plugins, listening, path, message)
        else:
            serve_until_stopped(settings, plugins, _keys(settings), [listening])


def _located(
    model: str, settings: Config, plugins: Plugins, backend: str | None, token: str | None
) -> tuple[Path, str]:
    """Where the model is, downloaded if it has to be, and what clients call it."""
    from enginebay.models.downloads import HubName, find_local, places

    folder = places(settings).models
    for path in (Path(model).expanduser(), folder / model):
        if path.exists():
            return path, path.absolute().name or "model"
    try:
        name = HubName.parse(model)
    except ValueError as error:
        fail(f"there is no file or folder {model}, here or in {folder}; {error}", code=2)
    if model.lower().endswith(".gguf") and ":" not in model:
        fail(f"there is no file {model}, here or in {folder}", code=2)
    form = _form(backend, plugins)
    local = find_local(folder, name, form)
    if local is None:
        _download(name, form, settings, plugins, backend, token)
        local = find_local(folder, name, form)
    if local is None:
        fail(f"{name} was downloaded, but its files changed meanwhile; run it again")
    return local.path, local.folder.name


def _form(backend: str | None, plugins: Plugins) -> Form | None:
    """What this backend loads; None for any, also where it does not say which."""
    from enginebay.models.files.recognise import form_of

    entry = plugins.backends.get(backend or "")
    return form_of(backend, plugins) if backend and entry and entry.serves else None


def _download(
    name: HubName,
    form: Form | None,
    settings: Config,
    plugins: Plugins,
    backend: str | None,
    token: str | None,
) -> None:
    from enginebay.contract.errors import ServingError
    from enginebay.models.downloads import Wanted, places, resolve
    from enginebay.models.files.recognise import backend_of

    wanted = Wanted(repo_id=name.repo_id, quant=name.quant, form=form, token=token)
    try:
        resolved = resolve(wanted)
    except ServingError as error:
        fail(error.message)
    assert resolved.choice
    needed = backend or backend_of(resolved.choice, plugins)
    if needed:
        require_libraries(needed, plugins)
    stderr().print(f"{name.repo_id}: {resolved.choice}, into {places(settings).models}")
    download_shown(wanted, places(settings), resolved)


def _listen(server: ServerConfig, host: str | None, port: int | None) -> socket.socket:
    """The socket to serve on: a free port, if the usual one is taken and no other was asked for."""
    from enginebay.server.http.sockets import CannotListenError, listen

    host = host or server.host
    try:
        try:
            return listen(host, server.port if port is None else port)
        except CannotListenError as error:
            cause = error.__cause__
            taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
            if port is not None or not taken:
                raise
        listening = listen(host, 0)
    except CannotListenError as error:
        fail(str(error))
    stderr().print(f"port {server.port} is in use; this server has {listening.getsockname()[1]}")
    return listening


def _keys(settings: Config, *more: Key) -> KeyStore:
    """Keys as of any server; but none are created where nobody needs one to chat."""
    from enginebay.server.access.guard import needed
    from enginebay.server.access.key_store import KeyStore, keys_path

    path = keys_path(settings)
    warn_if_open(settings)
    if needed(settings.server) != "required" and not path.exists():
        return KeyStore(path, more)
    return starting_keys(settings, *more)


def _chat(
    settings: Config, plugins: Plugins, listening: socket.socket, path: Path, message: str | None
) -> None:
    """Serve the model while somebody chats with it."""
    import httpx2

    from enginebay.cli.client import ApiError, connect
    from enginebay.cli.conversation import Conversation, loop
    from enginebay.config.keys import Key
    from enginebay.server.access.guard import needed
    from enginebay.server.access.keys import digest_of
    from enginebay.server.http.sockets import scheme_of, url_of

    key = secrets.token_urlsafe() if needed(settings.server) == "required" else None
    keys = _keys(settings, *([Key("run", digest_of(key))] if key else []))
    with serving(settings, plugins, listening, path, keys) as model:
        url = url_of(settings.server.host, settings.server.port, scheme_of(settings))
        name = settings.models[0].name
        page = f", with a page at {url}" if "page" in plugins.wings else ""
        stderr().print(f"{name} is served at {url}/v1{page}")
        served = model.served()
        if served.continues_text:
            stderr().print(
                f"{name} has no chat template, so it continues the text that you enter. For a "
                "chat, run it with --chat-template and one of: "
                f"{', '.join(served.templates.files)}"
            )
        with connect(url, key) as client:
            conversation = Conversation(client, name, continues_text=served.continues_text)
            try:
                if message is None:
                    loop(conversation)
                elif not conversation.ask(message):
                    raise typer.Exit(130)
            except (ApiError, httpx2.TransportError) as error:
                fail(f"{url} answers: {error}")
