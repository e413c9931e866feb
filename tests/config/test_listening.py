"""The keys of `server` about proxies, TLS and unix sockets."""

from pathlib import Path

import pytest

from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError
from enginebay.config.schema import ServerConfig


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("root_path", "llm", "must be a path of letters, digits and . _ ~ -, such as /llm"),
        ("root_path", "//evil.example", "such as /evil.example"),
        ("root_path", "/a/../b", "must be a path"),
        ("root_path", "/a b", "such as /llm"),
        ("root_path", "https://llm.example/", "such as /llm"),
        ("trusted_proxies", "[nginx]", "must be an address such as 127.0.0.1, a network"),
        ("trusted_proxies", '["*"]', "must be an address"),
        ("trusted_proxies", "[10.0.0.1/8]", "has host bits set"),
        ("tls_key", "key.pem", "needs `server.tls_cert`, the certificate"),
        ("tls_key_password", "secret", "needs `server.tls_cert`, the certificate"),
        ("unix_socket_access", "660", "must be"),
        ("unix_socket", "a.sock\n  tls_cert: a.pem", "cannot be used together with"),
    ],
)
def test_values_that_are_wrong(tmp_path: Path, key: str, value: str, message: str) -> None:
    """The line and what to write instead."""
    file = tmp_path / "config.yml"
    file.write_text(f"server:\n  {key}: {value}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    [problem] = caught.value.problems
    assert problem.line == 2
    assert problem.key.startswith(f"server.{key}")
    assert message in problem.message


def test_a_root_path_has_no_slash_at_its_end() -> None:
    for text, path in (("/llm", "/llm"), ("/home/llm/", "/home/llm"), ("/", None)):
        assert ServerConfig.model_validate({"root_path": text}).root_path == path
