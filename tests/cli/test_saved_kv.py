"""A server that was stopped and started again goes on with its conversations (ENG-8, ENG-9)."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from demo.to_gguf import convert
from tests.cli.conftest import Serving, StartServing
from tests.support import DEMO_MODEL

posix = pytest.mark.skipif(os.name == "nt", reason="Windows cannot send Ctrl-C to one process")
STORY = "Once there was a small boat on a wide river, and nobody knew who had built it. " * 6
FIRST: list[dict[str, str]] = [
    {"role": "user", "content": f"{STORY} What is the capital of France?"}
]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    convert(DEMO_MODEL, target, "f16")
    return target


def write(model: str, loading: str) -> None:
    text = "server: {port: 0, auth: none, usage_file: 'off'}\n"
    text += f"models:\n  - {{name: m, {model}}}\nloading: {{{loading}}}\n"
    Path("config.yml").write_text(text, encoding="utf-8")


class Chats:
    """A server's answers."""

    def __init__(self, serving: Serving) -> None:
        lines = serving.lines_until("Model +m: ")
        found = re.search(r"http://127\.0\.0\.1:\d+", lines[0])
        assert found
        self.url = found[0]

    def post(self, path: str, **body: Any) -> httpx2.Response:
        answer = httpx2.post(f"{self.url}{path}", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer

    def ask(self, messages: list[dict[str, str]], **more: Any) -> tuple[str, int]:
        """What is said, and how many tokens of the prompt were cached."""
        answer = self.post(
            "/v1/chat/completions", messages=messages, temperature=0, max_tokens=24, **more
        ).json()
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"], cached


def next_turn(said: str) -> list[dict[str, str]]:
    return [
        *FIRST,
        {"role": "assistant", "content": said},
        {"role": "user", "content": "What is 2+3?"},
    ]


@posix
@pytest.mark.parametrize("backend", [pytest.param("hf", marks=pytest.mark.thorough), "llamacpp"])
def test_a_conversation_goes_on_after_a_restart(
    backend: str, gguf: Path, start_serving: StartServing
) -> None:
    path = DEMO_MODEL if backend == "hf" else gguf
    model = f"backend: {backend}, path: '{path}', options: {{threads: 1}}"
    write(model, "")
    plain = start_serving()
    chats = Chats(plain)
    first, _ = chats.ask(FIRST)
    expected, _ = chats.ask(next_turn(first))
    plain.interrupt()

    Path("secret").write_text("0123456789abcdef0123456789abcdef", encoding="utf-8")
    write(model, "cache_dir: kv, cache_key_file: secret")
    before = start_serving()
    chats = Chats(before)
    assert chats.ask(FIRST) == (first, 0)
    assert before.interrupt() == 0
    (saved,) = Path("kv").rglob("*.kv")
    assert saved.stat().st_mode & 0o077 == 0

    after = start_serving()
    chats = Chats(after)
    assert chats.ask(FIRST, cache_salt="of somebody else")[1] == 0
    said, cached = chats.ask(next_turn(first))
    assert said == expected
    assert cached > 100
    metrics = httpx2.get(f"{chats.url}/metrics", timeout=60).text
    assert re.search(
        r"^enginebay:saved_kv_restored_tokens_total\{.*\} [1-9]", metrics, re.MULTILINE
    )
    assert re.search(r"^enginebay:saved_kv_disk_bytes\{.*\} [1-9]", metrics, re.MULTILINE)

    chats.post("/v1/models/m/unload")  # as a switch of models does, and `idle_timeout`
    chats.post("/v1/models/m/load")
    said, cached = chats.ask(next_turn(first))
    assert said == expected
    assert cached > 100

    # The engine outlives a server that is killed, and saves what it holds.
    after.process.send_signal(signal.SIGKILL)
    after.process.wait(60)


@posix
def test_an_unusable_key_file_is_said_before_the_start(
    gguf: Path, start_serving: StartServing
) -> None:
    write(f"backend: llamacpp, path: '{gguf}'", "cache_dir: kv, cache_key_file: nowhere")
    serving = start_serving()
    assert serving.process.wait(60) != 0
    assert "loading.cache_key_file" in serving.log
    assert "openssl rand" in serving.log
