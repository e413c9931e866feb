"""The keys of `loading` about conversations that are kept."""

import pytest

from enginebay import KvStoreSettings
from enginebay.config.load import load_config
from enginebay.config.problems import ConfigError
from enginebay.models.check_config import check_config, without_saved_kv
from enginebay.plugins import Plugins
from tests.config.conftest import WriteConfig

MODELS = "models:\n- {name: a, backend: hf, path: .}\n- {name: b, backend: exllamav2, path: .}\n"


def test_off_by_default_and_paths_start_at_the_config(write: WriteConfig) -> None:
    config = load_config(write(MODELS))
    assert config.loading.kv_store(config.base) is None
    config = load_config(
        write(f"{MODELS}loading: {{cache_ram: 1.5, cache_dir: kv, cache_disk: 2}}\n")
    )
    assert config.loading.kv_store(config.base) == KvStoreSettings(
        ram=3 << 29, folder=str(config.base / "kv"), disk=2 << 30
    )


def test_backends_that_cannot_are_named(write: WriteConfig) -> None:
    plugins = Plugins()
    assert without_saved_kv(load_config(write(MODELS)), plugins) == []
    config = load_config(write(f"{MODELS}loading: {{cache_dir: kv}}\n"))
    assert without_saved_kv(config, plugins) == ["b"]


@pytest.mark.parametrize(
    ("keys", "key", "message"),
    [
        ("cache_key_file: secret", "cache_key_file", "needs|without `loading.cache_dir`"),
        ("cache_ram: -1", "cache_ram", "0"),
        ("cache_ram: 1e300", "cache_ram", "less than"),
        ("cache_disk: 1e300", "cache_disk", "less than"),
        ("cache_dir: config.yml/kv", "cache_dir", "is no folder"),
        ("cache_dir: kv, cache_disk: 0", "cache_disk", "greater than 0"),
        ("cache_dir: file", "cache_dir", "is no folder"),
        ("cache_dir: kv, cache_key_file: nowhere", "cache_key_file", "openssl rand"),
        ("cache_dir: kv, cache_key_file: file", "cache_key_file", "has 5 bytes"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(
    keys: str, key: str, message: str, write: WriteConfig
) -> None:
    path = write(f"{MODELS}loading: {{{keys}}}\n")
    (path.parent / "file").write_text("short", encoding="utf-8")
    try:
        problems = check_config(load_config(path), Plugins())
    except ConfigError as error:
        problems = list(error.problems)
    (problem,) = [each for each in problems if "loading" in str(each)]
    assert f"config.yml:4: loading.{key}" in str(problem)
    assert any(part in str(problem) for part in message.split("|"))
