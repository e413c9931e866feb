"""The keys of `server` about media: MM-7, MM-8."""

from ipaddress import ip_network
from pathlib import Path

import pytest

from enginebay.config.load import load_config
from enginebay.config.schema import Config
from enginebay.media.policy import MediaPolicy
from tests.config.conftest import ProblemsOf, WriteConfig


def policy_of(config: Config) -> MediaPolicy:
    return config.server.media_policy(config.base)


def test_the_defaults_are_those_of_the_policy(write: WriteConfig) -> None:
    assert policy_of(load_config(write("server: {}\n"))) == MediaPolicy()


@pytest.mark.parametrize("off", ["off", "false", "no"])
def test_off(off: str, write: WriteConfig) -> None:
    assert not policy_of(load_config(write(f"server: {{fetch_media: {off}}}\n"))).fetch


def test_every_key_counts(write: WriteConfig, tmp_path: Path) -> None:
    config = load_config(
        write(
            "server:\n"
            "  media_hosts: [Pictures.example, .cdn.example, '*.more.example', 10.0.0.1, '::1']\n"
            "  media_networks: [192.168.1.0/24, 10.0.0.7, 'fd00::/8']\n"
            "  media_timeout: 2.5\n"
            "  media_dir: pictures\n"
            "  max_media_items: 1\n"
            "  max_media_bytes: 2\n"
            "  max_media_total_bytes: 3\n"
            "  max_media_pixels: 4\n"
            "  max_media_seconds: 5.5\n"
            "  max_media_frames: 6\n"
        )
    )
    policy = policy_of(config)
    assert policy.hosts == ("pictures.example", ".cdn.example", ".more.example", "10.0.0.1", "::1")
    assert policy.networks == tuple(map(ip_network, ("192.168.1.0/24", "10.0.0.7/32", "fd00::/8")))
    assert policy.folder == config.base / "pictures"
    sizes = (policy.items, policy.item_bytes, policy.request_bytes, policy.seconds)
    assert sizes == (1, 2, 3, 2.5)
    limits = policy.limits
    assert (limits.pixels, limits.seconds, limits.frames) == (4, 5.5, 6)


@pytest.mark.parametrize("host", ["http://a.example", "a.example:80", "a.example/x", "*", "a b"])
def test_hosts_that_could_never_match(host: str, problems_of: ProblemsOf) -> None:
    [problem] = problems_of(f"server: {{media_hosts: ['{host}']}}\n")
    assert "server.media_hosts[0]: must be a host name" in problem


@pytest.mark.parametrize("network", ["192.168.1.5/24", "nas", "10.0.0.0/33", "0x7f.1"])
def test_networks_that_are_none(network: str, problems_of: ProblemsOf) -> None:
    [problem] = problems_of(f"server: {{media_networks: [{network}]}}\n")
    assert "server.media_networks[0]: must be a network such as 192.168.1.0/24" in problem
