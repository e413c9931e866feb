"""The keys of a server at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from enginebay.cli.console import fail, stderr, stdout

if TYPE_CHECKING:
    from enginebay.config.keys import Key, Role
    from enginebay.config.schema import Config
    from enginebay.server.access.key_store import KeyStore


def starting_keys(config: Config, *more: Key) -> KeyStore:
    """The keys of a server that is about to start; a first start creates the keys file.

    `more` are valid besides, until it stops.
    Exits if nobody could use the server.
    """
    from enginebay.config.problems import ConfigError
    from enginebay.server.access.guard import needed
    from enginebay.server.access.key_store import key_store, keys_path

    path = keys_path(config)
    if config.server.auth != "none" and not path.exists():
        _make(config)
    try:
        keys = key_store(config, *more)
    except ConfigError as error:
        fail(error.problems, code=2)
    if needed(config.server) == "required" and not keys.known():
        fail(
            f"every request needs an API key, but there is none in {path} or under "
            "`server.api_keys`: create one with `enginebay keys add NAME`, or allow everyone who "
            "can connect with `server.auth: none` in the config"
        )
    return keys


def _make(config: Config) -> None:
    """Write a keys file with a key of an admin, and one of a user if users need keys; show them."""
    from enginebay.server.access import keys_file
    from enginebay.server.access.guard import needed
    from enginebay.server.access.key_store import keys_path
    from enginebay.server.access.keys import new_key

    path = keys_path(config)
    roles: tuple[Role, ...] = (
        ("user", "admin") if needed(config.server) == "required" else ("admin",)
    )
    made = {role: new_key() for role in roles}
    try:
        keys_file.create(path, [keys_file.new_entry(role, key, role) for role, key in made.items()])
    except FileExistsError:
        return  # another server of the same config was faster
    except OSError as error:
        stderr().print(f"no keys were created: {path} cannot be written ({error.strerror})")
        return
    console = stdout()
    console.print(f"New keys are stored in {path}, as hashes.", style="bold")
    if not console.is_terminal:  # but a log, where they would stay
        console.print("Keys are shown only on a terminal; `enginebay keys rotate NAME` creates new")
        console.print(f"ones and prints them. NAME is one of: {', '.join(made)}")
        return
    console.print("This is the only time they are shown:", style="bold")
    for name, key in made.items():
        console.print(f"{name:<6} {key}", soft_wrap=True)
    console.print("`enginebay keys add NAME` creates more, optionally with limits.")


def about_keys(config: Config, keys: KeyStore) -> str:
    """Who needs a key on this server, for the start-up banner."""
    from enginebay.server.access.guard import needed
    from enginebay.server.access.hosts import others_can_connect

    known = keys.known()
    admins = sum(key.role == "admin" for key in known)
    count = f"{len(known)} known ({admins} admin), {keys.path}"
    if config.server.api_keys:
        count += f" and {config.origins.where(('server', 'api_keys'))}"
    match needed(config.server):
        case "required":
            return f"needed for everything; {count}"
        case "admin":
            return f"needed for admin routes only; {count}"
    open_to = (
        "the network that can reach it" if others_can_connect(config.server) else "this machine"
    )
    return f"none needed: everyone on {open_to} can do everything, including admin routes"


def who_needs_keys(config: Config) -> str:
    """Which requests need a key with this config, and how all of them would, in sentences."""
    from enginebay.server.access.guard import needed

    who = needed(config.server)
    if who == "required":
        return "Every request needs a key."
    how = (
        f"To require a key for every request, set `server.auth: required` in {config.origins.file}."
    )
    if who == "none":
        return f"No request needs a key, because `server.auth` is `none`. {how}"
    return (
        "Requests without a key are still accepted, except on admin routes. Requests with a wrong "
        f"key are rejected as soon as there is a key with the role user. {how}"
    )


def warn_if_open(config: Config) -> None:
    """Warn if the config lets other machines in without a key."""
    from enginebay.server.access.guard import needed
    from enginebay.server.access.hosts import others_can_connect

    server, who = config.server, needed(config.server)
    if who == "required" or not others_can_connect(server):
        return
    place = server.unix_socket or f"{server.host} port {server.port}"
    what = "use, load and unload models" if who == "none" else "use the models"
    origin = config.origins.where(("server", "auth"))
    stderr().print(
        f"warning: anyone who can reach {place}, be it through a proxy, can {what} "
        f"without a key, because `server.auth` is `{who}` ({origin}); set it to `required` to "
        "change that",
        style="yellow",
    )
