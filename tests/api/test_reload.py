"""MOD-4: the config is read again while answers run, and none of them notices."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from ruamel.yaml import YAML

from enginebay.config.load import load_config
from enginebay.contract.backend_settings import BackendSettings
from enginebay.server.access.key_store import key_store
from enginebay.server.services import services_of
from tests.held import Held, until
from tests.support import Server, plugins_with, serve

CHAT = "/v1/chat/completions"
RELOAD = "/v1/config/reload"
SWITCH = "/v1/sampling/override/switch"
NOTHING: dict[str, Any] = {"added": [], "removed": [], "changed": [], "needs_restart": []}


class Site:
    """A config file, and what its backends are doing."""

    def __init__(self, base: Path) -> None:
        self.file = base / "config.yml"
        self.held: list[Held] = []
        self.settings: list[BackendSettings] = []

    def create(self, settings: BackendSettings) -> Held:
        self.settings.append(settings)
        self.held.append(Held())
        return self.held[-1]

    def write(self, *models: dict[str, Any], **sections: Any) -> None:
        sections.setdefault("server", {"auth": "none"})
        entries = [{"backend": "held", "path": ".", "load": "request", **each} for each in models]
        with self.file.open("w", encoding="utf-8") as file:
            YAML().dump({"models": entries, **sections}, file)

    @contextmanager
    def serve(self) -> Iterator[Server]:
        config = load_config(self.file)
        plugins = plugins_with(held=self.create)
        keys = key_store(config) if config.server.api_keys else None
        with serve(config, plugins, keys=keys) as server:
            yield server

    def let_go(self, server: Server, *prompts: str) -> None:
        async def go() -> None:
            for held in self.held:
                if hasattr(held, "loop"):  # it has been started
                    held.let_go(*prompts)

        server.run(go())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def reload(server: Server) -> dict[str, Any]:
    answer = server.http.post(RELOAD)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    assert body.pop("object") == "config.reload"
    return {key: value for key, value in body.items() if value}


def ask(model: str, text: str = "x") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


def names(server: Server) -> list[str]:
    return [card["id"] for card in server.http.get("/v1/models").json()["data"]]


def is_quiet(server: Server) -> bool:
    models = services_of(server.app).models
    loader = models._loader
    return not (models._retired or loader._loads or loader._tasks)


def test_models_come_and_go(site: Site) -> None:
    site.write({"name": "a"}, {"name": "b"})
    with site.serve() as server:
        assert reload(server) == {}
        site.write({"name": "b", "aliases": ["second"]}, {"name": "c"})
        assert reload(server) == {"added": ["c"], "removed": ["a"], "changed": ["b"]}
        assert names(server) == ["b", "c"]
        assert server.http.post(CHAT, json=ask("a")).status_code == 404
        site.let_go(server, "x")
        with server.http.stream("POST", CHAT, json={**ask("second"), "stream": True}) as answer:
            lines = answer.iter_lines()
            assert json.loads(next(lines).removeprefix("data: "))["model"] == "b"
            site.let_go(server, "x")
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_new_settings_without_a_new_engine(site: Site) -> None:
    site.write({"name": "a", "max_running": 1})
    with site.serve() as server:
        server.run(_load(server, "a"))
        changed = {"sampling": {"temperature": 0.5}, "idle_timeout": 900, "max_running": 7}
        site.write({"name": "a", "aliases": ["b"], **changed})
        assert reload(server) == {"changed": ["a"]}
        explained = server.http.post("/v1/chat/completions/explain", json=ask("b")).json()
        assert "0.5" in json.dumps(explained)
        entry = services_of(server.app).models.find("b")
        assert (entry.state, entry.idle_timeout) == ("ready", 900)
        assert entry.served().gate.size.max_running == 7
        assert len(site.held) == 1


async def _wait(task: "asyncio.Task[None]") -> None:
    await asyncio.wait({task})


async def _load(server: Server, name: str) -> None:
    models = services_of(server.app).models
    await _wait(models.load(models.find(name)))


def test_a_chat_template_that_a_loaded_model_cannot_use(site: Site) -> None:
    site.write({"name": "a"})
    (site.file.parent / "broken.jinja").write_text("{% if %}", encoding="utf-8")
    with site.serve() as server:
        server.run(_load(server, "a"))
        site.write({"name": "a", "chat_template": "broken.jinja"}, {"name": "b"})
        answer = server.http.post(RELOAD)
        assert answer.status_code == 400
        assert "config.yml:" in answer.json()["error"]["message"]
        assert names(server) == ["a"]
        assert services_of(server.app).models.find("a").config.chat_template is None


@pytest.mark.wing("llama_server")
@pytest.mark.parametrize("place", ["mine.jinja", "templates/mine.jinja"])
@pytest.mark.parametrize("switched", [False, True])
def test_an_edited_template_is_a_change(site: Site, place: str, switched: bool) -> None:
    # EVE-6
    file = site.file.parent / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("one {{ messages[0].content }}", encoding="utf-8")
    name = place if place == file.name else "mine"
    site.write({"name": "a", **({} if switched else {"chat_template": name})}, {"name": "b"})
    with site.serve() as server:
        server.run(_load(server, "a"))
        if switched:
            body = {"name": "mine", "model": "a"}
            assert server.http.post("/v1/template/switch", json=body).is_success
        assert reload(server) == {}
        file.write_text("two {{ messages[0].content }}", encoding="utf-8")
        assert reload(server) == {"changed": ["a"]}
        body = {"model": "a", "messages": [{"role": "user", "content": "hi"}]}
        assert server.http.post("/apply-template", json=body).json()["prompt"] == "two hi"
        assert reload(server) == {}
        file.write_text("{% if %}", encoding="utf-8")
        assert server.http.post(RELOAD).status_code == 400
        file.unlink()
        assert switched is (server.http.post(RELOAD).status_code == 200)
        assert server.http.post("/apply-template", json=body).json()["prompt"] == "two hi"


@pytest.mark.parametrize(
    "name", ["chat_template.jinja", "tokenizer_config.json", "additional_chat_templates/a.jinja"]
)
def test_an_edited_template_in_the_models_folder_loads_it_again(site: Site, name: str) -> None:
    # EVE-6
    folder = site.file.parent / "model"
    file = folder / name
    file.parent.mkdir(parents=True)
    file.write_text("one", encoding="utf-8")
    site.write({"name": "a", "path": "model"}, {"name": "b"})
    with site.serve() as server:
        server.run(_load(server, "a"))
        assert reload(server) == {}
        file.write_text("two", encoding="utf-8")
        assert reload(server) == {"changed": ["a"]}
        until(server, lambda: is_quiet(server))
        assert len(site.settings) == 2
        assert reload(server) == {}


def test_a_broken_config_changes_nothing_and_says_everything(site: Site) -> None:
    site.write({"name": "a"})
    with site.serve() as server:
        site.write(
            {"name": "b", "lod": 1},
            {"name": "c", "max_queue": -1},
            server={"prt": 1, "auth": "none"},
        )
        answer = server.http.post(RELOAD)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        for said in (": models[0].lod: unknown key", "models[1].max_queue", "server.prt: unknown"):
            assert said in error["message"]
        site.write({"name": "b", "path": "nowhere"}, {"name": "c", "backend": "held2"})
        message = server.http.post(RELOAD).json()["error"]["message"]
        assert "there is no file or folder" in message
        assert "no backend 'held2'" in message
        site.file.unlink()
        assert "no such file" in server.http.post(RELOAD).json()["error"]["message"]
        assert names(server) == ["a"]


def test_what_needs_a_restart_is_named_and_limits_are_not(site: Site) -> None:
    site.write({"name": "a"})
    with site.serve() as server:
        sections = {"server": {"port": 1, "auth": "none"}, "plugins": {"folder": "p"}}
        site.write({"name": "a"}, loading={"max_loaded_models": 1, "timeout": 7}, **sections)
        for _ in range(2):
            assert reload(server) == {"needs_restart": ["server.port", "plugins.folder"]}
        loader = services_of(server.app).models._loader
        assert loader._config.timeout == loader.room._config.timeout == 7


def test_keys_of_the_config(site: Site) -> None:
    site.write({"name": "a"}, server={"api_keys": ["first"], "auth": "auto"})
    with site.serve() as server:
        first, second = ({"Authorization": f"Bearer {key}"} for key in ("first", "second"))
        assert server.http.get("/v1/models", headers=first).status_code == 200
        assert server.http.post(RELOAD, headers=first).status_code == 403
        site.write({"name": "a"}, server={"api_keys": ["second"], "auth": "auto"})
        server.run(services_of(server.app).reload.run())
        assert server.http.get("/v1/models", headers=first).status_code == 401
        assert server.http.get("/v1/models", headers=second).status_code == 200


def test_only_admins_may(site: Site) -> None:
    site.write({"name": "a"}, server={"auth": "required", "api_keys": ["user"]})
    with site.serve() as server:
        assert server.http.post(RELOAD).status_code == 401
        headers = {"Authorization": "Bearer user"}
        assert server.http.post(RELOAD, headers=headers).status_code == 403


def test_a_removed_and_a_changed_model_go_on_for_their_requests(site: Site) -> None:
    site.write({"name": "a"}, {"name": "b"}, loading={"drain_timeout": 0})
    with site.serve() as server:
        body = {"stream": True}
        with (
            server.http.stream("POST", CHAT, json={**ask("a", "1"), **body}) as first,
            server.http.stream("POST", CHAT, json={**ask("b", "2"), **body}) as second,
        ):
            site.write({"name": "b", "options": {"new": 1}}, loading={"drain_timeout": 0})
            assert reload(server) == {"removed": ["a"], "changed": ["b"]}
            assert names(server) == ["b"]
            assert len(site.held) == 2
            site.let_go(server, "1", "2")
            for answer in (first, second):
                assert '"finish_reason":"stop"' in answer.read().decode()
        until(server, lambda: services_of(server.app).models.find("b").state == "ready")
        until(server, lambda: is_quiet(server))
        assert [each.options for each in site.settings] == [{}, {}, {"new": 1}]


def test_nothing_is_cut_or_left_over_under_load(site: Site) -> None:
    """Streams, and between them reloads that change, add and remove their models."""
    chance = random.Random(7)

    def rewrite() -> None:
        models: list[dict[str, Any]] = [{"name": "always", "options": {"n": chance.randrange(3)}}]
        for name in "abcd":
            if chance.random() < 0.7:
                temperature = chance.choice([0.1, 0.2])
                options = {"n": chance.randrange(2)}
                models.append(
                    {"name": name, "options": options, "sampling": {"temperature": temperature}}
                )
        site.write(*models, loading={"drain_timeout": 0})

    async def stream(http: httpx2.AsyncClient, number: int) -> str:
        body = {**ask(chance.choice(["always", *"abcd"]), str(number)), "stream": True}
        async with http.stream("POST", CHAT, json=body) as answer:
            text = (await answer.aread()).decode()
        if answer.status_code != 200:
            return str(answer.status_code)
        whole = text.endswith("data: [DONE]\n\n") and '"finish_reason":"stop"' in text
        return "whole" if whole else text

    async def free(server: Server, done: asyncio.Event) -> None:
        while not done.is_set():
            site.let_go(server, *(prompt for held in site.held for prompt in held.running[:5]))
            await asyncio.sleep(0.001)

    async def crowd(server: Server) -> list[str]:
        done = asyncio.Event()
        limits = httpx2.Limits(max_connections=64)
        async with httpx2.AsyncClient(base_url=server.url, timeout=60, limits=limits) as http:
            going = [asyncio.create_task(stream(http, number)) for number in range(160)]
            freeing = asyncio.create_task(free(server, done))
            for _ in range(20):
                rewrite()
                answer = await http.post(RELOAD)
                assert answer.status_code == 200, answer.text
            ended = await asyncio.gather(*going)
            done.set()
            await freeing
        return ended

    rewrite()
    with site.serve() as server:
        ended = asyncio.run(crowd(server))
        assert set(ended) <= {"whole", "404"}
        assert ended.count("whole") > 60
        until(server, lambda: is_quiet(server))
        models = services_of(server.app).models
        started = models._starter._backends._started
        loaded = {model.started for model in models.all() if model.started}
        assert set(started.values()) == loaded
        assert all(model.use.count == model.use.waiting == 0 for model in models.all())


def test_a_model_that_is_like_no_other_any_more(site: Site) -> None:
    site.write({"name": "a"}, {"name": "b", "like": "a"})
    with site.serve() as server:
        site.write({"name": "a"}, {"name": "b"})
        assert reload(server) == {"changed": ["b"]}
        assert reload(server) == {}


def test_a_preset_goes_on_for_a_model_that_needs_another_engine(site: Site) -> None:
    presets = site.file.parent / "sampler_overrides"
    presets.mkdir()
    (presets / "mine.yml").write_text("top_k:\n  override: 40\n")
    site.write({"name": "a"})
    with site.serve() as server:
        server.run(_load(server, "a"))
        assert server.http.post(SWITCH, json={"preset": "mine"}).status_code == 200
        site.write({"name": "a", "options": {"n": 1}}, {"name": "b"})
        assert reload(server) == {"added": ["b"], "changed": ["a"]}
        for name in ("a", "b"):
            preset = services_of(server.app).models.find(name).preset
            assert preset
            assert preset.name == "mine"


@pytest.mark.parametrize("switched", [False, True])
def test_preset_files_are_read_again(site: Site, switched: bool) -> None:
    """Those of the config and those switched to, for loaded, unloaded and later models."""
    file = site.file.parent / "sampler_overrides" / "mine.yml"
    file.parent.mkdir()
    file.write_text("top_k:\n  override: 40\n")
    preset = {} if switched else {"sampling_preset": "mine"}
    models = [{"name": "a", **preset}, {"name": "b", **preset}]
    site.write(*models)
    with site.serve() as server:
        for name in ("a", "b"):
            server.run(_load(server, name))
        if switched:
            assert server.http.post(SWITCH, json={"preset": "mine"}).status_code == 200
        assert server.http.post("/v1/models/b/unload").is_success
        file.write_text("# the same\ntop_k: {override: 40}\n")
        assert reload(server) == {}
        file.write_text("top_k:\n  override: 7\n")
        assert reload(server) == {"changed": ["a", "b"]}
        server.run(_load(server, "b"))
        for name in ("a", "b"):
            assert top_k(server, name) == 7
        file.write_text("top_k:\n  override: much\n")
        refused = server.http.post(RELOAD)
        assert refused.status_code == 400
        assert "mine.yml:2" in refused.json()["error"]["message"]
        assert top_k(server, "a") == 7
        if switched:
            file.write_text("top_k:\n  override: 8\n")
            site.write(*models, {"name": "c"})
            assert reload(server) == {"added": ["c"], "changed": ["a", "b"]}
            assert top_k(server, "c") == 8
            file.unlink()
            assert reload(server) == {}
            assert top_k(server, "a") == 8


def top_k(server: Server, name: str) -> Any:
    overrides = services_of(server.app).models.find(name).overrides
    return overrides.written["top_k"]["override"]


def test_a_model_that_begins_to_load_while_another_gets_ready(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write({"name": "a"}, {"name": "b"})
    with site.serve() as server:
        server.run(_load(server, "a"))
        models = services_of(server.app).models
        prepare = models._starter.prepare

        async def prepare_slowly(*args: Any) -> Any:
            models.load(models.find("b"))
            return await prepare(*args)

        monkeypatch.setattr(models._starter, "prepare", prepare_slowly)
        new = {"name": "b", "options": {"new": 1}}
        site.write({"name": "a", "sampling": {"temperature": 0.5}}, new)
        assert reload(server) == {"changed": ["a", "b"]}
        until(server, lambda: is_quiet(server))
        entry = models.find("b")
        assert (entry.state, entry.config.options) == ("ready", {"new": 1})
        assert site.settings[-1].options == {"new": 1}


def test_models_in_files_of_their_own(site: Site) -> None:
    """MOD-4: `models.d/*.yml`, each with one model, a list, or a list under `models`."""
    folder = site.file.parent / "models.d"
    folder.mkdir()
    entry = "backend: held, path: ., load: request"
    (folder / "2.yml").write_text(f"- {{name: c, {entry}}}\n- {{name: d, {entry}}}\n")
    (folder / "1.yaml").write_text("name: b\nlike: c\nsampling: {temperature: 0.5}\n")
    (folder / "3.yml").write_text(f"models:\n- {{name: e, {entry}}}\n")
    (folder / "notes.txt").write_text("no: model\n")
    site.write({"name": "a"})
    with site.serve() as server:
        assert names(server) == ["a", "b", "c", "d", "e"]
        assert services_of(server.app).models.find("b").config.backend == "held"
        (folder / "2.yml").write_text(f"- {{name: c, {entry}}}\n- {{name: a, {entry}}}\n")
        (folder / "3.yml").write_text("name: [\n")
        (folder / "4.yml").write_text(f"name: f\n{entry.replace(', ', chr(10))}\nmistake: 1\n")
        (folder / "5.yml").write_text("")
        refused = server.http.post(RELOAD)
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert f"{folder / '2.yml'}:2: [1].name: models[0].name ({site.file} line" in message
        assert f"{folder / '3.yml'}:2: " in message
        assert f"{folder / '4.yml'}:5: mistake: unknown key" in message
        assert f"{folder / '5.yml'}: the file is empty" in message
        assert names(server) == ["a", "b", "c", "d", "e"]
        for name in ("3.yml", "4.yml", "5.yml"):
            (folder / name).unlink()
        (folder / "2.yml").write_text(f"name: c\n{entry.replace(', ', chr(10))}\nmax_running: 2\n")
        assert reload(server) == {"removed": ["d", "e"], "changed": ["b", "c"]}
        assert names(server) == ["a", "b", "c"]
