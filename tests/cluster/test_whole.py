"""A cluster of two nodes from one command, with real engines of two backends, and real clients."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from anthropic import Anthropic, DefaultHttpxClient
from ollama import Client
from openai import OpenAI

from demo.to_gguf import convert
from tests.cluster.site import ADMIN, PLUGINS, Front, Site, replicas, site, until
from tests.support import DEMO_MODEL, NO_TLS

pytestmark = pytest.mark.thorough

TWICE = {"cluster": {"replicas": 2, "per_node": 1, "cpus": 0.1}}
MODELS = ("torch", "llama")
NOWHERE = {"gpus": 1, "labels": ["nobody"]}
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say something."}],
    "temperature": 0,
    "max_tokens": 16,
    "seed": 1,
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    gguf = folder / "demo.gguf"
    convert(DEMO_MODEL, gguf, "f32")
    torch: dict[str, Any] = {"backend": "hf", "path": str(DEMO_MODEL)}
    torch["options"] = {"threads": 1, "dtype": "float32"}
    llama: dict[str, Any] = {"backend": "llamacpp", "path": str(gguf), "options": {"threads": 1}}
    talker: dict[str, Any] = {"backend": "talker", "path": str(PLUGINS)}
    talker["options"] = {"embeds": True, "context": 10_000_000}
    with site(folder) as here:
        here.configure(
            [
                torch | TWICE | {"name": "torch"},
                llama | TWICE | {"name": "llama"},
                talker | TWICE | {"name": "pooler"},
                talker | {"name": "ü" * 40, "load": "request", "cluster": {}},
                talker | {"name": "nowhere", "load": "request", "cluster": NOWHERE},
                torch | {"name": "torch-near"},
                llama | {"name": "llama-near"},
                talker | {"name": "pooler-near"},
            ]
        )
        here.up(1, "--cpus", "4")
        yield here


@pytest.fixture(scope="module")
def front(here: Site) -> Front:
    return here.front()


def same(answer: dict[str, Any]) -> dict[str, Any]:
    """What two answers have in common that say the same."""
    own = ("id", "created", "model", "system_fingerprint", "usage")
    rest = {key: value for key, value in answer.items() if key not in own}
    usage = {k: v for k, v in answer["usage"].items() if k != "extra"}
    usage.pop("prompt_tokens_details", None)  # what is cached depends on what was asked before
    return rest | {"usage": usage}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("more", [{}, {"n": 3, "temperature": 1}, {"logprobs": True}], ids=str)
def test_chats_are_those_of_one_process(  # SCALE-2
    front: Front, model: str, more: dict[str, Any]
) -> None:
    def asked(name: str) -> dict[str, Any]:
        answer = front.post("/v1/chat/completions", CHAT | more | {"model": name})
        assert answer.status_code == 200, answer.text
        return same(answer.json())

    assert asked(model) == asked(f"{model}-near")


@pytest.mark.parametrize("model", MODELS)
def test_completions_and_grammars_are_those_of_one_process(  # SCALE-2
    front: Front, model: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    bodies: list[dict[str, Any]] = [
        {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "echo": True},
        {"prompt": "Once", "max_tokens": 60, "temperature": 0, "guided_json": schema},
        {"prompt": ["One", "two"], "max_tokens": 4, "temperature": 0, "stop": ["."]},
    ]
    for body in bodies:
        far, near = (
            front.post("/v1/completions", body | {"model": name}).json()
            for name in (model, f"{model}-near")
        )
        assert same(far) == same(near)


def test_embeddings_and_scores_are_those_of_one_process(front: Front) -> None:  # SCALE-2
    bodies = {
        "/v1/embeddings": {"input": ["one", "two"]},
        "/v1/rerank": {"query": "which", "documents": ["this one", "that"]},
        "/tokenize": {"prompt": "Hello"},
    }
    for path, body in bodies.items():
        answers = [front.post(path, body | {"model": name}) for name in ("pooler", "pooler-near")]
        assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
        far, near = (answer.json() for answer in answers)
        for answer in (far, near):
            for own in ("id", "model", "created"):
                answer.pop(own, None)
        assert far == near


def test_messages_may_be_large(front: Front) -> None:
    """By default Serve's gRPC takes 4 MiB, which a picture can be."""
    answer = front.post("/tokenize", {"model": "pooler", "prompt": "x" * 5_000_000})
    assert answer.status_code == 200, answer.text
    assert answer.json()["count"] == 5_000_000


def test_a_name_that_is_too_long_for_ray_is_an_error(front: Front) -> None:
    answer = front.post("/v1/chat/completions", CHAT | {"model": "ü" * 40})
    assert answer.status_code == 503
    assert "give it a shorter `name`" in answer.text


def test_what_no_node_can_run_is_an_error_that_says_why(front: Front) -> None:
    chat = CHAT | {"model": "nowhere"}
    answer = front.post("/v1/chat/completions", chat)
    assert answer.status_code == 503
    assert "no node of the cluster has 1 GPU and the label 'nobody'" in answer.text
    assert '"nowhere"' not in front.get("/v1/cluster").text  # nothing waits for a place


def test_it_passes_the_checks_of_conformance(here: Site, front: Front) -> None:
    for group in ("openai", "responses", "messages", "ollama", "kobold"):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "enginebay.cli", "conformance", front.url),
                *("--model", "torch", "--api-key", ADMIN, "--group", group),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=here.folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_clients_of_other_apis_are_answered(front: Front) -> None:
    http = DefaultHttpxClient(verify=NO_TLS)
    with OpenAI(base_url=f"{front.url}/v1", api_key=ADMIN, http_client=http) as openai:
        answer = openai.responses.create(model="llama", input="Hello", max_output_tokens=8)
        assert answer.output_text
        assert answer.usage
        assert answer.usage.output_tokens == 8
    http = DefaultHttpxClient(verify=NO_TLS)
    with (
        Anthropic(base_url=front.url, api_key=ADMIN, http_client=http) as anthropic,
        anthropic.messages.stream(
            model="torch", max_tokens=8, messages=[{"role": "user", "content": "Hello"}]
        ) as stream,
    ):
        assert "".join(stream.text_stream) == stream.get_final_text()
    ollama = Client(host=front.url, headers={"Authorization": f"Bearer {ADMIN}"}, verify=NO_TLS)
    said = ollama.chat("llama", [{"role": "user", "content": "Hello"}], options={"num_predict": 8})
    ollama._client.close()
    assert said.message.content
    assert said.eval_count == 8


async def test_the_cluster_says_what_runs_and_ends_cleanly(  # SCALE-20
    here: Site, front: Front
) -> None:
    def cluster(*arguments: str) -> str:
        command = [sys.executable, "-m", "enginebay.cli", "cluster", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=here.folder, check=True)
        return done.stdout

    table = cluster("status")
    told = json.loads(cluster("status", "--json"))
    assert len(told["nodes"]) == 2
    for model in ("torch", "llama", "pooler"):
        engines = [each for each in told["engines"] if each["model"] == model]
        assert {each["state"] for each in engines} == {"ready"}
        assert len({each["node"] for each in engines}) == 2
        assert model in table
    assert cluster("down", "pooler").startswith("the engines of pooler end;")
    await until(lambda: not replicas("pooler"))
    embed = {"model": "pooler", "input": "x"}
    refused = front.post("/v1/embeddings", embed)
    assert refused.status_code == 503
    assert "load the model to start them again" in refused.text
    cards = {card["id"]: card for card in front.get("/v1/models").json()["data"]}
    assert "they were ended" in cards["pooler"]["stage"]
    loaded = front.post("/v1/models/pooler/load")
    assert '"status":"finished"' in loaded.text.splitlines()[-2], loaded.text
    assert front.post("/v1/embeddings", embed).status_code == 200
    chat = front.post("/v1/chat/completions", CHAT | {"model": "torch"})
    assert chat.status_code == 200
    everything = here.processes()
    here.close()
    _, alive = psutil.wait_procs(everything, timeout=20)
    assert alive == []
