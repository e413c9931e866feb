"""The certificate of HTTPS, replaced while the server runs when its files change."""

import asyncio
import logging
import ssl
import time
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from enginebay.config.paths import state_of
from enginebay.config.problems import ConfigError
from enginebay.config.schema import Config, resolved_path

logger = logging.getLogger(__name__)

LOOK_EVERY = 1.0
"""Seconds between two looks at the files."""

_SOON = timedelta(days=14)


class UnusableError(Exception):
    """`key` of the config names a file that cannot be used; the message says why."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class Certificate:
    """A certificate chain and its private key, in one file or two. Raises `UnusableError`.

    `context` is for servers: connections begin with the newest pair that could be read, and those
    that there are keep theirs.
    """

    def __init__(self, chain: Path, key: Path | None = None, password: str | None = None) -> None:
        if find_spec("cryptography") is None:
            raise UnusableError(
                "tls_cert",
                "HTTPS needs the package cryptography, which is not installed; install it with: "
                'pip install "enginebay[tls]"',
            )
        self._chain = chain
        self._key = key
        self._password = password
        self._seen = self._state()
        self._newest = self._read()
        self.context = self._read()
        self.context.sni_callback = self._choose

    async def keep_current(self) -> None:
        """Look at the files every second, for ever, on a thread: an encrypted key takes long."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Read the files if they have changed; if they are unusable, that is logged."""
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            self._newest = self._read()
        except UnusableError as error:
            logger.error("keeping the previous certificate: %s", error)
        else:
            logger.info("%s has changed: new connections get its certificate", self._chain)
            if warning := self.warning(time.time()):
                logger.warning(warning)

    def warning(self, now: float) -> str | None:
        """That clients refuse it at this time (Unix, in seconds), or soon will; None if not.

        Soon is within 14 days, or the last tenth of its life if that is shorter.
        """
        from cryptography import x509

        try:
            certificate = x509.load_pem_x509_certificate(self._chain.read_bytes())
        except (OSError, ValueError):  # OpenSSL could read it, which is what matters
            return None
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        today = datetime.fromtimestamp(now, UTC)
        if today < begins:
            return (
                f"the certificate in {self._chain} is valid from {begins:%Y-%m-%d %H:%M} UTC on: "
                "clients refuse it until then; is this machine's clock right?"
            )
        if today >= ends:
            return (
                f"the certificate in {self._chain} has expired on {ends:%Y-%m-%d %H:%M} UTC: "
                "clients refuse it; renew it"
            )
        if ends - today <= min(_SOON, (ends - begins) / 10):
            return (
                f"the certificate in {self._chain} expires on {ends:%Y-%m-%d %H:%M} UTC: renew it, "
                "or clients refuse it then"
            )
        return None

    def _choose(self, connection: ssl.SSLObject, name: str | None, context: Any) -> None:
        connection.context = self._newest

    def _read(self) -> ssl.SSLContext:
        """A context of its own for each pair: one that is only half replaced would be broken."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        for name, file in (("tls_cert", self._chain), ("tls_key", self._key)):
            if file is not None:
                _require_readable(name, file)
        try:
            context.load_cert_chain(self._chain, self._key, lambda: self._password or "")
        except ssl.SSLError as error:
            raise self._unusable(error) from error
        except (OSError, ValueError) as error:
            raise UnusableError("tls_cert", f"{self._chain}: {error}") from error
        return context

    def _unusable(self, error: ssl.SSLError) -> UnusableError:
        """What OpenSSL means: it names neither the file nor what to do."""
        key, reason = self._key or self._chain, error.reason or ""
        if reason == "KEY_VALUES_MISMATCH":
            said = f"the key in {key} is not that of the certificate in {self._chain}"
            return UnusableError("tls_key" if self._key else "tls_cert", said)
        text = key.read_text("utf-8", "replace") if key.is_file() else ""
        if "ENCRYPTED" in text:
            if self._password:
                return UnusableError("tls_key_password", f"is not the password of {key}")
            said = f"{key} is encrypted: set `server.tls_key_password`"
            return UnusableError("tls_key" if self._key else "tls_cert", said)
        if "-----BEGIN CERTIFICATE-----" not in self._chain.read_text("utf-8", "replace"):
            return UnusableError("tls_cert", f"{self._chain} has no certificate in PEM format")
        if "PRIVATE KEY-----" not in text:
            said = f"{key} has no private key in PEM format; name the file that has it as `tls_key`"
            return UnusableError("tls_key" if self._key else "tls_cert", said)
        return UnusableError("tls_cert", f"{self._chain} or {key} is damaged: {reason or error}")

    def _state(self) -> list[tuple[int, int, int] | None]:
        return [state_of(file) for file in (self._chain, self._key) if file is not None]


def certificate_of(config: Config) -> Certificate | None:
    """The certificate of a server with this config; None if it has none. Raises `ConfigError`."""
    server = config.server
    if server.tls_cert is None:
        return None
    password = server.tls_key_password
    try:
        return Certificate(
            Path(resolved_path(server.tls_cert, config.base)),
            Path(resolved_path(server.tls_key, config.base)) if server.tls_key else None,
            password.get_secret_value() if password else None,
        )
    except UnusableError as error:
        raise ConfigError([config.origins.problem(("server", error.key), str(error))]) from error


def _require_readable(name: str, file: Path) -> None:
    if "-----BEGIN" in str(file):
        raise UnusableError(name, "must be the name of a file, not what is in it")
    try:
        with file.open("rb"):
            pass
    except OSError as error:
        raise UnusableError(name, f"{file} cannot be read: {error.strerror}") from error
