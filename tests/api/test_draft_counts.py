"""Usage, timings and metrics say the same of drafts, whatever the requests are. ENG-7."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from enginebay.plugins import Plugins
from tests.support import DEMO_MODEL, Server, scripted_config, serve

CHAT = "/v1/chat/completions"
TEXT = "the cat and the dog and the cat and the dog and the cat and the dog"
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": f"Repeat: {TEXT}"}],
    "temperature": 0,
    "max_tokens": 40,
    "prediction": {"type": "content", "content": TEXT},
}
COUNTERS = ("spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several": {"n": 3, "temperature": 0.8, "seed": 1},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
    "stop": {"stop": ["dog", "."]},
    "grammar": {"guided_regex": "(the (cat|dog) and ){3}the end"},
    "banned": {"banned_strings": [" the", "a", "o"]},
    "logprobs": {"logprobs": True, "top_logprobs": 2},
    "short": {"max_tokens": 1},
}


@pytest.fixture(scope="module", params=["hf", "llamacpp"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = DEMO_MODEL
    options: dict[str, Any] = {"threads": 1, "prompt_lookup": 6}
    if request.param == "llamacpp":
        pytest.importorskip("llama_cpp")
        from demo.to_gguf import convert

        path = tmp_path_factory.mktemp("gguf") / "demo.gguf"
        convert(DEMO_MODEL, path, "f16")
    else:
        options["device"] = "cpu"
    config = scripted_config(backend=request.param, path=str(path), options=options)
    with serve(config, Plugins()) as server:
        yield server


def counted(server: Server) -> tuple[int, int]:
    """What the metrics say: tokens drafted and accepted so far."""
    lines = server.http.get("/metrics").text.splitlines()
    values = [
        next((line.split()[-1] for line in lines if f"{name}{{" in line), "0") for name in COUNTERS
    ]
    return int(float(values[0])), int(float(values[1]))


def usage_of(server: Server, fields: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    """The usage of an answer, with `timings` beside it if it has any."""
    body = {**BODY, **fields, "timings_per_token": True}
    if not stream:
        response = server.http.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer["usage"] | {"llama": answer["timings"]}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    timings: dict[str, Any] = {}
    with server.http.stream("POST", CHAT, json=body) as response:
        assert response.status_code == 200
        for chunk in chunks(response.iter_lines()):
            assert "error" not in chunk
            before, timings = timings, chunk.get("timings", timings)
            assert timings.get("draft_n", 0) >= before.get("draft_n", 0)
            usage = chunk.get("usage") or {}
    return usage | {"llama": timings}


def chunks(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def drafted(usage: dict[str, Any]) -> tuple[int, int]:
    """Tokens drafted and accepted, by the usage of an answer, which must agree with itself."""
    details = usage.get("completion_tokens_details") or {}
    accepted = details.get("accepted_prediction_tokens", 0)
    total = accepted + details.get("rejected_prediction_tokens", 0)
    assert 0 <= accepted <= min(total, usage["completion_tokens"])
    timings = usage["llama"]
    assert (timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)) == (total, accepted)
    return total, accepted


def test_usage_timings_and_metrics_agree(server: Server) -> None:
    before = counted(server)
    asked = [(fields, stream) for fields in KINDS.values() for stream in (False, True)] * 2
    with ThreadPoolExecutor(6) as pool:
        usages = list(pool.map(lambda ask: usage_of(server, ask[0], stream=ask[1]), asked))
    found = [drafted(usage) for usage in usages]
    after = counted(server)
    assert sum(total for total, _ in found) == after[0] - before[0] > 0
    assert sum(accepted for _, accepted in found) == after[1] - before[1]


def test_answers_that_are_cut_off_are_counted_as_far_as_they_came(server: Server) -> None:
    before = counted(server)
    for kind in ("plain", "banned", "several"):
        body = {**BODY, **KINDS[kind], "stream": True, "max_tokens": 200, "ignore_eos": True}
        with server.http.stream("POST", CHAT, json=body) as response:
            for _, _ in zip(range(4), chunks(response.iter_lines()), strict=False):
                pass
    server.settle()
    usage_of(server, {}, stream=False)  # behind it the engine has heard of all that went before
    cut = counted(server)
    assert all(now >= then for now, then in zip(cut, before, strict=True))
    assert cut[1] <= cut[0]
    usage = usage_of(server, {}, stream=False)
    total, accepted = drafted(usage)
    assert counted(server) == (cut[0] + total, cut[1] + accepted)
