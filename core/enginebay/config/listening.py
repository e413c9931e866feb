"""The keys of `server` about what stands before it: a path, proxies, TLS, a unix socket."""

import re
from ipaddress import ip_network
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, ValidationInfo, field_validator

from enginebay.config.section import Section, Text

UNIX = "unix"
"""Among trusted proxies: whoever connects to the unix socket."""

_PATH = re.compile(r"(/[\w.~-]+)+", re.ASCII)


def is_path(text: str) -> bool:
    """Whether a path can stand before those of the server: `/llm`, `/home/llm`."""
    parts = text.split("/")
    return bool(_PATH.fullmatch(text)) and not {".", ".."}.intersection(parts)


def _root_path(text: str) -> str | None:
    path = text.rstrip("/")
    if path and not is_path(path):
        meant = f"/{path.strip('/')}"
        such_as = meant if is_path(meant) else "/llm"
        raise ValueError(f"must be a path of letters, digits and . _ ~ -, such as {such_as}")
    return path or None


def _proxy(text: str) -> str:
    if text == UNIX:
        return text
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise ValueError(
            f"must be an address such as 127.0.0.1, a network such as 10.0.0.0/8, or {UNIX} for "
            f"the unix socket; {error}"
        ) from error


class ListeningConfig(Section):
    """What is between the server and those who use it."""

    root_path: Annotated[Text, AfterValidator(_root_path)] | None = Field(
        None, description="Path below which a proxy has the server, such as /llm; stripped or not."
    )
    trusted_proxies: list[Annotated[Text, AfterValidator(_proxy)]] = Field(
        default=[],
        description="Addresses and networks whose X-Forwarded headers are believed, and unix.",
    )
    second_port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="A second port, for clients that look at one of their own; none if unset.",
    )
    tls_cert: Text | None = Field(
        None, description="Certificate chain (PEM) for HTTPS; read again when the file changes."
    )
    tls_key: Text | None = Field(
        None, description="Its private key (PEM), if that is not in the same file."
    )
    tls_key_password: SecretStr | None = Field(
        None, description="Password of the private key, if it is encrypted."
    )
    unix_socket: Text | None = Field(
        None, description="Listen on this unix socket, a file, instead of host and port."
    )
    unix_socket_access: Literal["owner", "group", "all"] = Field(
        "owner", description="Who may connect to it: the server's user, its group too, or all."
    )

    @field_validator("tls_key", "tls_key_password")
    @classmethod
    def _is_of_a_certificate(cls, value: object, found: ValidationInfo) -> object:
        if found.data.get("tls_cert", "") is None:
            raise ValueError("needs `server.tls_cert`, the certificate")
        return value

    @field_validator("unix_socket")
    @classmethod
    def _has_no_certificate(cls, path: str, found: ValidationInfo) -> str:
        if found.data.get("tls_cert"):
            raise ValueError(
                "cannot be used together with `server.tls_cert`: what goes through it stays on "
                "this machine; leave one of the two out"
            )
        return path
