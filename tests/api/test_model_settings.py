"""SEC-1: settings that lie in the models folder are a stranger's, whoever put them there."""

import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from enginebay import Backend, BackendUnavailableError, EngineBackend
from enginebay.config.schema import Config, ModelConfig
from enginebay.contract.backend_settings import BackendSettings
from enginebay.models.check_config import option_names
from enginebay.models.files.model_folder import folder_of
from enginebay.plugins import Plugins
from enginebay.server.services import services_of
from enginebay.testing import ScriptedEngine
from enginebay_checkpoint.folder import Checkpoint
from enginebay_hf.pooling.sentence import read_sentence_folder
from tests.support import DEMO_MODEL, Server, plugins_with, serve

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
SECRET = "{# a secret #}{{ messages }}"
OWN = "{# its own #}{% for message in messages %}{{ message.content }}{% endfor %}"

# Every key of a model's entry is in one of these two: a new one has to be put into one of them.
ACCEPTED: dict[str, Any] = {
    "chat_template": "own.jinja",
    "chat_template_content_format": "string",
    "overflow": "drop_oldest",
    "continue_assistant": True,
    "response_role": "model",
    "reasoning": "none",
    "reasoning_start": "never",
    "reasoning_field": "reasoning",
    "reasoning_budget": 9,
    "reasoning_budget_message": "enough",
    "template_vars": {"a": 1},
    "force_template_vars": {"b": 2},
    "tools": "none",
    "parse_calls": "always",
    "tools_in_reasoning": False,
    "sampling": {"temperature": 0, "max_tokens": 3},
}
REFUSED: dict[str, Any] = {
    "name": "gpt-4o",
    "aliases": ["gpt-4o", "y"],
    "like": "y",
    "backend": "llamacpp",
    "path": "/etc/passwd",
    "load": "start",
    "idle_timeout": 1,
    "pinned": True,
    "isolation": "thread",
    "sampling_preset": "mine",
    "max_running": 1,
    "max_queue": 1,
    "queue_timeout": 1,
    "cluster": {"engines": 9},
    # of plugins, of other parts of the config, and of nothing
    "plugins": {"folder": "."},
    "server": {"host": "0.0.0.0"},
    "loading": {"max_loaded_models": 1},
    "models": [{"name": "gpt-4o", "backend": "hf", "path": "."}],
    "unknown": 1,
    "Load": "start",
    "1": 2,
}
OPTIONS_ACCEPTED = {"context_length": 64}
OPTIONS_REFUSED: dict[str, Any] = {
    **dict.fromkeys(("replicas", "gpus", "cpus", "per_node", "labels", "engine", "options"), 1),
    **dict.fromkeys(("trust_remote_code", "vision", "build_extension", "tensor_parallel"), True),
    **dict.fromkeys(("paged", "mlock", "mmap", "check_tensors", "swa_full", "offload_kv"), True),
    **dict.fromkeys(("repack", "kv_unified", "prepack", "fuse_projections", "embeddings"), False),
    **dict.fromkeys(("matryoshka", "deterministic"), True),
    **dict.fromkeys(("draft_model", "value_head", "mmproj"), "/etc/passwd"),
    **dict.fromkeys(("max_batch_size", "cache_tokens", "batch_tokens", "ubatch_tokens"), 1),
    **dict.fromkeys(("prefill_tokens", "media_cache_mb", "prompt_lookup", "draft_tokens"), 1),
    **dict.fromkeys(("threads", "threads_batch", "gpu_layers", "cpu_moe_layers", "main_gpu"), 1),
    **dict.fromkeys(("yarn_orig_ctx", "experts_per_token"), 1),
    **dict.fromkeys(("prefill_slowdown", "rope_freq_base", "rope_freq_scale", "rope_scale"), 2.5),
    **dict.fromkeys(("yarn_ext_factor", "yarn_attn_factor", "yarn_beta_fast"), 2.5),
    **dict.fromkeys(("yarn_beta_slow", "yarn_factor", "rope_alpha", "draft_rope_alpha"), 2.5),
    **{"tensor_split": [1], "gpu_split": [1], "autosplit_reserve": [1]},
    **dict.fromkeys(("cache_type", "cache_type_k", "cache_type_v", "draft_cache_type"), "f32"),
    **{"device": "cuda", "dtype": "float16", "device_map": "auto", "max_memory": {0: 1}},
    **{"batching": "single", "quantize": "int8", "pooling": "rank", "numa": "numactl"},
    **{"attn_implementation": "stranger/kernels", "adapters": {"gpt-4o": "/etc"}},
    **{"override_tensor": "x=CPU", "override_kv": {"x": 1}, "split_mode": "row"},
    **{"flash_attention": "on", "rope_scaling": "yarn", "of_a_plugin": "http://stranger"},
}


def test_every_key_is_decided_upon() -> None:
    # SEC-1
    assert not ACCEPTED.keys() & REFUSED.keys()
    assert {"options", *ACCEPTED, *REFUSED} >= ModelConfig.model_fields.keys()
    assert ACCEPTED.keys() <= ModelConfig.model_fields.keys()
    backends = Plugins().backends
    assert backends.keys() >= {"hf", "llamacpp", "exllamav2"}
    options = {name for entry in backends.values() for name in option_names(entry)}
    assert {*OPTIONS_ACCEPTED, *OPTIONS_REFUSED} - {"of_a_plugin"} == options


def write_all(file: Path) -> list[str]:
    """Write a file that has every key; returns how the report of each refused one begins."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in ACCEPTED.items()]
    reports = []
    for key, value in REFUSED.items():
        lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
        reports.append(f"{file}:{len(lines)}: {key}: ignored, because")
    lines.append("options:")
    lines += [f"  {key}: {json.dumps(value)}" for key, value in OPTIONS_ACCEPTED.items()]
    for key, value in OPTIONS_REFUSED.items():
        lines.append(f"  {key}: {json.dumps(value)}")
        reports.append(f"{file}:{len(lines)}: options.{key}: ignored, because")
    file.write_text("\n".join(lines), encoding="utf-8")
    return reports


def create_toy(settings: BackendSettings) -> Backend:
    return EngineBackend(lambda: ScriptedEngine([settings.name]))


def plugins() -> Plugins:
    made = plugins_with()
    made.backends("toys", create_toy, serves=lambda path: path.suffix == ".toy")
    return made


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The models folder of a config, in whose folder the user has files of their own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "templates").mkdir()
    for file in ("secret.jinja", "templates/mine.jinja", "templates/rag.jinja"):
        (tmp_path / file).write_text(SECRET)
    return tmp_path / "models"


@contextmanager
def served(config: dict[str, Any] | None = None) -> Iterator[Server]:
    with serve(Config.model_validate(config or {}), plugins()) as server:
        yield server


def cards(server: Server) -> dict[str, Any]:
    return {card["id"]: card for card in server.http.get("/v1/models").json()["data"]}


def chat(server: Server, model: str) -> Any:
    return server.http.post(CHAT, json={"model": model, "messages": MESSAGES})


def shown_of(server: Server, model: str) -> str:
    """All that clients see of a model's template."""
    props = server.http.get("/props", params={"model": model}).text
    return props + server.http.post("/api/show", json={"model": model}).text


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in log.records if each.levelno == logging.WARNING]


def test_a_folder_that_sets_everything(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    # SEC-1: its code does not run, it takes no name, it is not loaded, and the log has each line
    model, marker = models / "x", models.parent / "marker"
    shutil.copytree(DEMO_MODEL, model)
    (model / "own.jinja").write_text(OWN)
    (model / "code.py").write_text(f"open({str(marker)!r}, 'w')")
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "code.A", "AutoModelForCausalLM": "code.B"}
    (model / "config.json").write_text(json.dumps(config))
    expected = write_all(model / "enginebay.yml")
    (models / "y.toy").touch()
    with served() as server:
        assert cards(server).keys() == {"x", "y.toy"}
        card = cards(server)["x"]
        assert (card["state"], card["load"], card["aliases"]) == ("unloaded", "request", [])
        assert chat(server, "gpt-4o").status_code == 404
        assert chat(server, "y").status_code == 404
        answer = chat(server, "x")
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["role"] == "model"
        assert "its own" in shown_of(server, "x")
        used = services_of(server.app).models.find("x").config
        plain = ModelConfig(
            name="x", backend="hf", path=str(model), load="request", idle_timeout=600
        )
        own = {**ACCEPTED, "chat_template": str((model / "own.jinja").resolve())}
        written = ModelConfig.model_validate({**plain.model_dump(), **own})
        assert used == written.model_copy(update={"options": OPTIONS_ACCEPTED})
        (models / "z.toy").touch()
        assert "z.toy" in cards(server)
    assert not marker.exists()
    told = [text for text in warnings(caplog) if "enginebay.yml" in text]
    assert [text[: len(start)] for text, start in zip(told, expected, strict=True)] == expected


def test_the_config_may_do_more(models: Path) -> None:
    # SEC-1: the replacement for what settings files may not set
    (models / "x.toy").touch()
    entry = {"name": "x", "backend": "toys", "path": "models/x.toy", "aliases": ["gpt-4o"]}
    with served({"models": [{**entry, "chat_template": "mine"}]}) as server:
        assert cards(server)["x"]["state"] == "ready"
        assert chat(server, "gpt-4o").status_code == 200
        assert "a secret" in shown_of(server, "x")


@pytest.mark.parametrize(
    "template",
    [
        *("/etc/passwd", "{base}/secret.jinja", "../secret.jinja", "../../secret.jinja"),
        *("sub/../../secret.jinja", "../x/../../secret.jinja", "link.jinja", "away/secret.jinja"),
        *("~/secret.jinja", "file:///etc/passwd", "http://stranger/a.jinja", "secret.jinja"),
        *("mine", "mine.jinja", "templates/mine.jinja", "rag", "pipe.jinja", "notes.txt", "sub"),
        *("a\0.jinja", "a" * 5000 + ".jinja", "models/y/own.jinja", "../y/own.jinja"),
    ],
)
def test_templates_of_others(models: Path, template: str, caplog: pytest.LogCaptureFixture) -> None:
    # SEC-1
    (models / "x" / "sub").mkdir(parents=True)
    (models / "x" / "m.toy").touch()
    (models / "x" / "notes.txt").write_text(SECRET)
    (models / "x" / "link.jinja").symlink_to(models.parent / "secret.jinja")
    (models / "x" / "away").symlink_to(models.parent, target_is_directory=True)
    os.mkfifo(models / "x" / "pipe.jinja")  # to read it is to wait for ever
    (models / "y").mkdir()
    (models / "y" / "own.jinja").write_text(SECRET)
    text = template.replace("{base}", str(models.parent))
    places = [models / "x" / "enginebay.yml", models / "x" / "m.yml"]
    for place in places:
        place.write_text(f"chat_template: {json.dumps(text)}")
    with served() as server:
        assert chat(server, "x/m.toy").status_code == 200
        assert "secret" not in shown_of(server, "x/m.toy")
    told = "".join(warnings(caplog))
    assert all(f"{place}:1: chat_template: ignored, because" in told for place in places)


@pytest.mark.parametrize(
    ("template", "shows"),
    [
        *(("own.jinja", "its own"), ("./sub/own.jinja", "its own"), ("inner.jinja", "its own")),
        *(("chatml", "im_start"), ("chatml.jinja", "im_start"), ("default", "messages")),
    ],
)
def test_templates_of_its_own_and_shipped_ones(models: Path, template: str, shows: str) -> None:
    # SEC-1: also in a folder that is elsewhere
    away = models.parent / "disk" / "x"
    (away / "sub").mkdir(parents=True)
    (away / "m.toy").touch()
    for name in ("own.jinja", "sub/own.jinja"):
        (away / name).write_text(OWN)
    (away / "inner.jinja").symlink_to("sub/own.jinja")
    (away / "enginebay.yml").write_text(f"chat_template: {template}")
    (models.parent / "templates" / "chatml.jinja").write_text(SECRET)
    (models / "x").symlink_to(away, target_is_directory=True)
    with served() as server:
        assert chat(server, "x/m.toy").status_code == 200
        assert shows in shown_of(server, "x/m.toy")
        assert "secret" not in shown_of(server, "x/m.toy")


def _linked(file: Path) -> None:
    file.symlink_to(file.parents[2] / "others.yml")


def _text(text: str) -> Any:
    return lambda file: file.write_text(text, encoding="utf-8")


BOMB = "template_vars:\n  a: &a [x]\n" + "".join(
    f"  {name}: &{name} [{', '.join(9 * [f'*{before}'])}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_linked, "this is a link to a file outside its folder"),
        (os.mkfifo, "this is a pipe, a device or a socket"),
        (Path.mkdir, "cannot be read"),
        (lambda file: file.symlink_to("/dev/zero"), "this is a link to a file outside its folder"),
        (_text("#" * 70_000), "larger than 65536 bytes"),
        (_text(BOMB), "anchors are not accepted"),
        (_text("template_vars: &a {b: *a}"), "anchors are not accepted"),
        (_text("template_vars: " + "[" * 30_000 + "]" * 30_000), "cannot parse this as YAML"),
        (_text("template_vars: " + "{a: " * 40 + "}" * 40), "nested more than 20 levels"),
        (_text("template_vars: {a: [" + "1," * 3000 + "]}"), "more than 2000 values"),
        (_text("reasoning_budget: 0x" + "f" * 9000), "more than 100 digits"),
        (_text("sampling: {seed: " + "9" * 9000 + "}"), "more than 100 digits"),
        (_text("a: !!python/object/apply:os.system [x]"), "tags (!!) are not accepted"),
        (_text("options: [1]"), "must be a mapping"),
        (_text("options: {context_length: [1]}"), "must be a whole number"),
        (_text('sampling: {"a\\nERROR: b": 1}'), r"sampling.a\nERROR: b: unknown key"),
        (_text(""), "is empty"),
    ],
)
def test_settings_that_cannot_be_used(models: Path, make: Any, reason: str) -> None:
    # SEC-1: such files cost no more than their model, and nothing of other files is shown
    (models.parent / "others.yml").write_text("secret: of-the-server\nload: start")
    (models / "x").mkdir()
    for file in ("x/m.toy", "y.toy"):
        (models / file).touch()
    make(models / "x" / "enginebay.yml")
    with served() as server:
        assert chat(server, "y.toy").status_code == 200
        listed = server.http.get("/v1/models").text
        error = cards(server)["x/m.toy"]["error"]
        refused = chat(server, "x/m.toy")
    assert reason in error
    assert len(error) < 1000
    assert refused.status_code == 503
    assert "secret" not in listed + refused.text


def test_many_refused_settings(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    # SEC-1: a file does not fill the log, nor does it write lines of its own into it
    (models / "x.toy").touch()
    keys = "".join(f"k{number}: 1\n" for number in range(900))
    odd = json.dumps("a\n\x1b[31mERROR" + "b" * 900)
    (models / "enginebay.yml").write_text(f"{odd}: 1\nsamplng: 1\n{keys}")
    with served() as server:
        assert chat(server, "x.toy").status_code == 200
    first, second, *others, last = warnings(caplog)
    assert len(others) == 198
    assert r"1: a\n\x1b[31mERRORbbb" in first
    assert len(first) < 1500
    assert "did you mean 'sampling'?" in second
    assert last.endswith("enginebay.yml: 702 more settings are ignored")


def test_the_check_of_a_config_names_them(models: Path) -> None:
    # SEC-1
    (models / "x.toy").touch()
    (models / "x.yml").write_text("load: start")
    wrong, refused = folder_of(Config(), plugins()).problems()
    assert wrong == []
    assert [str(problem) for problem in refused] == [
        f"{models / 'x.yml'}:1: load: ignored, because files in the models folder may not set it. "
        "To set it, add an entry for this model to config.yml or to a file in models.d/."
    ]


LINKS = {
    "chat_template.jinja": "secret.jinja",
    "additional_chat_templates": "templates",
    "tokenizer_config.json": "secret.json",
    "config.json": "secret.json",
    "vocab.txt": "secret.jinja",
}


@pytest.mark.parametrize("name", LINKS)
def test_links_out_of_a_model(models: Path, name: str) -> None:
    # SEC-1: a repository keeps links, and clients may read templates and tokens
    model = models / "x"
    shutil.copytree(DEMO_MODEL, model)
    secret = {"chat_template": SECRET, **json.loads((model / "config.json").read_text())}
    (models.parent / "secret.json").write_text(json.dumps(secret))
    for each in {name, "chat_template.jinja"}:  # without which the others are looked at
        (model / each).unlink(missing_ok=True)
    (model / name).symlink_to(models.parent / LINKS[name])
    with pytest.raises(BackendUnavailableError, match=rf"{name} leads to a file or folder outside"):
        Checkpoint(model).check()
    with served() as server:
        assert "a secret" not in server.http.post("/api/show", json={"model": "x"}).text
        if name == "chat_template.jinja":
            answer = chat(server, "x")
            assert (answer.status_code, f"{name} leads to" in answer.text) == (503, True)
            assert "a secret" not in shown_of(server, "x")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("modules.json", [{"path": "../y", "type": "sentence_transformers.models.Transformer"}]),
        ("modules.json", [{"path": "{base}", "type": "sentence_transformers.models.Dense"}]),
        ("model.safetensors.index.json", {"weight_map": {"a": "../y/model.safetensors"}}),
    ],
)
def test_paths_out_of_a_model(models: Path, file: str, content: Any) -> None:
    # SEC-1: what its files name lies in the folder
    (models / "x").mkdir()
    (models / "y").mkdir()
    (models / "x" / file).write_text(json.dumps(content).replace("{base}", str(models.parent)))
    checkpoint = Checkpoint(models / "x")
    with pytest.raises(BackendUnavailableError, match="outside"):
        _ = read_sentence_folder(checkpoint), checkpoint.weight_files


def test_links_that_models_may_have(tmp_path: Path) -> None:
    # SEC-1: a folder that is elsewhere, weights on another disk, the cache of Hugging Face
    repository = tmp_path / "models--owner--name"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    shutil.copytree(DEMO_MODEL, repository / "blobs")
    for file in (repository / "blobs").iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(DEMO_MODEL / "model.safetensors")
    (tmp_path / "x").symlink_to(snapshot, target_is_directory=True)
    Checkpoint(tmp_path / "x").check()
