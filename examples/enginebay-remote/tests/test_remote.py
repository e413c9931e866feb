"""The backend against a second Enginebay."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import serving
from enginebay_remote import create
from enginebay_remote.dialects import TRIAL
from enginebay_remote.options import Options

from enginebay import (
    Backend,
    BackendSettings,
    BackendUnavailableError,
    ContextLengthExceededError,
    GenerationRequest,
    SamplingParams,
)
from enginebay.testing import check_backend

Make = Callable[..., Backend]
SAID = "<think>Hm.</think>Hello, world\u2028and all that is in it"


async def test_keeps_the_promises(remote: Make) -> None:
    """All that a backend promises."""
    await check_backend(remote)


async def test_keeps_the_promises_with_a_model(demo: tuple[str, Path]) -> None:
    """The demo model on the other server: every sampling param it honours has its effect here."""
    url, folder = demo
    options = Options(tokenizer=str(folder), retries=0)
    settings = BackendSettings(name="m", path=url, options=options)
    prompt = "<|im_start|>user\nTell me a story"
    await check_backend(lambda: create(settings), prompt=prompt)


def test_every_param_is_tried() -> None:
    """Of an Enginebay, that is, which says by name what its engine has no use for."""
    never = {"max_tokens", "constraint", "reasoning_budget", "format_marks", "stop_scope"}
    assert set(TRIAL) == set(SamplingParams.__dataclass_fields__) - never
    neutral = SamplingParams()
    for name, value in TRIAL.items():
        default = getattr(neutral, name)
        assert value != (list(default) if isinstance(default, tuple) else default), name


@pytest.mark.parametrize("options", [{}, {"tokenizer": None, "api": "completions"}])
async def test_says_what_the_remote_says(remote: Make, options: dict[str, Any]) -> None:
    """Text, tokens and logprobs to the last token, the one without a text.

    An Enginebay has a tokenizer and a template for those who have no tokenizer here.
    """
    backend = remote(**options)
    info = await backend.start()
    try:
        prompt = tuple(await backend.tokenize("Hi", add_special_tokens=True))
        request = GenerationRequest(
            request_id="r",
            prompt_token_ids=prompt,
            sampling=SamplingParams(logprobs=1, prompt_logprobs=1),
            n=2,
        )
        deltas = [delta async for delta in backend.generate(request)]
    finally:
        await backend.close()
    for index in range(2):
        mine = [delta for delta in deltas if delta.index == index]
        entries = [entry for delta in mine for entry in delta.logprobs or ()]
        assert "".join(delta.text for delta in mine) == SAID
        assert "".join(entry.token for entry in entries) == SAID
        assert [id for delta in mine for id in delta.token_ids] == [*map(ord, SAID), 0]
        assert (mine[-1].finish_reason, mine[-1].stop_reason) == ("stop", None)
    assert deltas[0].prompt_logprobs
    assert [entry and entry.token for entry in deltas[0].prompt_logprobs] == [None, "i"]
    assert info.context_length == 4096
    of_folder = info.chat_template == "{{ messages[-1].content }}"
    assert of_folder != bool(options)
    assert info.chat_template
    assert not info.constraints
    # What the upstream engine does not support is unsupported here, too.
    assert {"temperature", "mirostat", "constraint"} <= info.unsupported
    assert not info.unsupported & {"stop", "stop_token_ids", "max_tokens", "logprobs"}


async def test_errors_of_the_remote(remote: Make) -> None:
    """A request that cannot fit is the client's fault, a key that is refused is not."""
    backend = remote(context_length=100_000)  # so that it is the remote that refuses
    await backend.start()
    try:
        request = GenerationRequest(request_id="r", prompt_token_ids=(65,) * 5000)
        with pytest.raises(ContextLengthExceededError):
            await anext(backend.generate(request))
    finally:
        await backend.close()
    for options, message in (
        ({"api_key": "wrong"}, "401"),
        ({"model": "other"}, "has no model 'other'; it has: said"),
        ({"tokenizer": "/nowhere"}, "there is no"),
    ):
        backend = remote(**options)
        with pytest.raises(BackendUnavailableError, match=message):
            await backend.start()
        await backend.close()


def test_served(url: str, model: Path, tmp_path: Path) -> None:
    """Clients of the Enginebay in front get reasoning and answer apart, as from any model."""
    config = f"""
server: {{port: 0}}
models:
  - name: far
    backend: remote
    path: {url}
    reasoning: think
    options: {{tokenizer: {json.dumps(str(model))}, api_key: secret}}
"""
    body = {"model": "far", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0.5}
    with serving(tmp_path, config, {}) as near:
        answer = httpx2.post(f"{near}/chat/completions", json=body, timeout=60)
    [choice] = answer.json()["choices"]
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] == "Hello, world\u2028and all that is in it"
    assert choice["finish_reason"] == "stop"
    assert answer.json()["usage"]["prompt_tokens"] == len("Hi")
    assert answer.json()["usage"]["completion_tokens"] == len(SAID) + 1
    assert answer.headers["x-unsupported-params"] == "temperature"


async def test_a_path_that_is_no_url() -> None:
    """The usual mistake says what to do."""
    with pytest.raises(BackendUnavailableError, match="the server's URL"):
        create(BackendSettings(name="m", path="/models/m"))
