"""Downloads from a hub of our own, which breaks, lies and refuses."""

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enginebay.contract.errors import InvalidRequestError
from enginebay.models.downloads import (
    Control,
    Downloads,
    Places,
    Progress,
    StoppedError,
    Wanted,
    download,
)
from enginebay.models.downloads.errors import (
    DiskFullError,
    DownloadConflictError,
    DownloadTimeoutError,
    HubError,
    RepositoryForbiddenError,
    RepositoryNotFoundError,
)
from enginebay.models.downloads.hub import Hub
from tests.downloads.conftest import CONTENT, FILES, StartHub
from tests.downloads.hub import REPO, TOKEN, FakeHub

Get = Callable[..., Path]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "models", tmp_path / "loras")


@pytest.fixture
def get(places: Places) -> Get:
    """`get(**wanted)` downloads the repository; the reports are in `get.said`."""

    def run(*, places: Places = places, **wanted: Any) -> Path:
        run.said = said = []  # type: ignore[attr-defined]
        asked = Wanted(**{"repo_id": REPO, **wanted})
        return download(asked, places, said.append, Control(asked.timeout))

    return run


async def until(condition: Callable[[], bool]) -> None:
    """Threads are at work, and what they do cannot be awaited."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".cache" not in path.parts
    }


def parts(folder: Path) -> list[Path]:
    return list(folder.glob(".cache/enginebay/*.part"))


def test_all_files_come(start_hub: StartHub, get: Any, places: Places) -> None:
    start_hub()
    folder = get()
    assert folder == places.models / "tiny"
    assert content(folder) == FILES
    assert parts(folder) == []
    said: list[Progress] = get.said
    total = sum(map(len, FILES.values()))
    assert (said[0].completed, said[0].total, said[0].files) == (0, total, 3)
    assert (said[-1].completed, said[-1].completed_files) == (total, 3)
    assert [each.completed for each in said] == sorted(each.completed for each in said)


def test_nothing_comes_twice(start_hub: StartHub, get: Get) -> None:
    hub = start_hub()
    folder = get()
    count = len(hub.fetched)
    get()
    assert len(hub.fetched) == count
    (folder / "config.json").write_text("damaged")
    get()
    assert hub.fetched[count:] == [("config.json", None)]
    assert content(folder) == FILES


def test_a_new_commit_replaces_what_changed(start_hub: StartHub, get: Get) -> None:
    hub = start_hub()
    folder = get()
    hub.files["config.json"] = b'{"new": 1}'
    count = len(hub.fetched)
    get()
    assert hub.fetched[count:] == [("config.json", None)]
    assert content(folder) == hub.files


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_connections_are_taken_up_again(start_hub: StartHub, get: Get, ranges: bool) -> None:
    hub = start_hub(breaks={"model.safetensors": [3000, 7000]}, ranges=ranges)
    assert content(get()) == FILES
    asked = [range_ for name, range_ in hub.fetched if name == "model.safetensors"]
    assert asked[0] is None
    assert len(asked) == 3
    assert all(asked[1:])


def test_what_has_come_is_kept_for_the_next_time(
    start_hub: StartHub, get: Get, places: Places
) -> None:
    hub = start_hub(breaks={"model.safetensors": [3000] * 7})
    with pytest.raises(HubError, match="what arrived is kept"):
        get()
    hub.breaks.clear()
    count = len(hub.fetched)
    folder = get()
    assert ("model.safetensors", "bytes=3000-") in hub.fetched[count:]
    assert content(folder) == FILES
    assert parts(folder) == []


def test_the_token_goes_to_the_hub_only(
    start_hub: StartHub, get: Get, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub = start_hub()
    get(token=TOKEN)
    assert {token for path, _, token in hub.asked if path.startswith("/cdn/")} == {None}
    assert {token for path, _, token in hub.asked if not path.startswith("/cdn/")} == {
        f"Bearer {TOKEN}"
    }
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("served", [b"short", CONTENT + b"more", CONTENT[:-1] + b"x"])
@pytest.mark.parametrize("lfs", [set(), {"model.safetensors"}])
def test_other_bytes_than_promised_are_refused(
    start_hub: StartHub, get: Get, places: Places, served: bytes, lfs: set[str]
) -> None:
    hub = start_hub(serves={"model.safetensors": served}, lfs=lfs)
    with pytest.raises(HubError, match=r"model\.safetensors"):
        get()
    folder = places.models / "tiny"
    assert not (folder / "model.safetensors").exists()
    hub.serves.clear()
    assert content(get()) == FILES


def test_a_part_that_is_no_beginning_is_given_up(
    start_hub: StartHub, get: Get, places: Places
) -> None:
    hub = start_hub(breaks={"model.safetensors": [3000] * 7})
    with pytest.raises(HubError):
        get()
    [part] = [part for part in parts(places.models / "tiny") if part.stat().st_size]
    part.write_bytes(b"y" * 4000)
    hub.breaks.clear()
    with pytest.raises(HubError, match="does not match its hash"):
        get()
    assert content(get()) == FILES


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "a/../../evil",
        "..\\evil",
        "C:/evil",
        "a//b",
        "./a",
        "a\0b",
        "new\nline",
        "x" * 300,
        ".cache/enginebay/download.json",
        ".cache/huggingface/x",
        ".CACHE/enginebay/download.json",
        "NUL",  # SEC-12, from here on
        "sub/Com1.txt",
        "model.",
        "sub /model",
        "a/" * 600 + "a",
        "\ud800",
    ],
)
def test_hostile_file_names_are_refused(
    start_hub: StartHub, get: Get, places: Places, name: str
) -> None:
    hub = start_hub({**FILES, name: b"evil"})
    with pytest.raises(InvalidRequestError, match="leave it out") as caught:
        get()
    assert caught.value.param == "repo_id"
    assert hub.fetched == []
    assert not places.models.exists()
    exclude = name.replace("[", "?")
    assert content(get(exclude=(exclude,))) == FILES


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("evil", "evil/x"), "the first name is also that of a folder"),
        (("evil/x/y", "evil"), "the first name is also that of a folder"),
        (("Evil", "evil/x"), "the first name is also that of a folder"),
        (("a/evil", "A/Evil"), "their names differ only in case"),
        (("\u00e9", "e\u0301"), "their names differ only in case, or not at all"),
        (("stra\u00dfe", "STRASSE"), "their names differ only in case"),
    ],
)
def test_names_that_exclude_each_other(
    start_hub: StartHub, get: Get, places: Places, names: tuple[str, str], reason: str
) -> None:
    # SEC-12
    hub = start_hub({**FILES, **dict.fromkeys(names, b"evil")})
    with pytest.raises(InvalidRequestError, match=reason) as caught:
        get()
    assert caught.value.param == "repo_id"
    assert all(repr(name) in caught.value.message for name in names)
    assert (hub.fetched, places.models.exists()) == ([], False)
    assert names[1] in content(get(exclude=(names[0],)))


def test_a_file_that_became_a_folder(start_hub: StartHub, get: Get) -> None:
    # SEC-12
    hub = start_hub()
    folder = get()
    hub.files["config.json/new"] = hub.files.pop("config.json")
    with pytest.raises(DownloadConflictError, match=r"config\.json is in the way; remove it"):
        get()
    (folder / "config.json").unlink()
    assert content(get())["config.json/new"] == b"{}"


def test_links_lead_nowhere_else(
    start_hub: StartHub, get: Get, places: Places, tmp_path: Path
) -> None:
    start_hub()
    folder = get()
    outside = tmp_path / "outside"
    outside.mkdir()
    (folder / "sub" / "tokenizer.json").unlink()
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(outside)
    with pytest.raises(InvalidRequestError, match="is outside its folder"):
        get()
    assert list(outside.iterdir()) == []
    (places.models / "link").symlink_to(outside)
    with pytest.raises(InvalidRequestError, match="is outside its folder"):
        get(folder_name="link")


@pytest.mark.parametrize("name", ["..", "../x", "/tmp/x", ".", "a/../../x", "a\\b"])
def test_folder_names_stay_inside(start_hub: StartHub, get: Get, name: str) -> None:
    start_hub()
    with pytest.raises(InvalidRequestError) as caught:
        get(folder_name=name)
    assert caught.value.param == "folder_name"


def test_a_folder_of_somebody_else_is_left_alone(
    start_hub: StartHub, get: Get, places: Places
) -> None:
    start_hub()
    mine = places.models / "mine"
    mine.mkdir(parents=True)
    (mine / "config.json").write_text("mine")
    with pytest.raises(DownloadConflictError, match="not downloaded by this server"):
        get(folder_name="mine")
    other = places.models / "other"
    get(folder_name="other")
    state = other / ".cache/enginebay/download.json"
    state.write_text(state.read_text().replace(REPO, "somebody/else"))
    with pytest.raises(DownloadConflictError, match="has the files of somebody/else"):
        get(folder_name="other")
    assert (mine / "config.json").read_text() == "mine"


def test_patterns_choose_files(start_hub: StartHub, get: Get) -> None:
    start_hub()
    folder = get(include=("*.json",), exclude=("sub/*",))
    assert content(folder) == {"config.json": b"{}"}
    with pytest.raises(InvalidRequestError, match="leave no file of tests/tiny") as caught:
        get(include=("*.gguf",))
    assert caught.value.param == "include"


@pytest.mark.parametrize("quant", [None, ""])
def test_settings_are_never_downloaded(start_hub: StartHub, get: Get, quant: str | None) -> None:
    # SEC-1
    model = {"config.json": b"{}", "model.safetensors": b"x" * 9, "eval.yaml": b"{}"}
    settings = ("enginebay.yml", "sub/enginebay.yml", "model.YML", "enginebay.yml. ")
    start_hub({**model, **dict.fromkeys(settings, b"load: start")})
    assert content(get(quant=quant)) == model
    with pytest.raises(InvalidRequestError, match=r"end in \.yml are never downloaded"):
        get(include=settings)


def test_a_lora_goes_to_its_folder(start_hub: StartHub, get: Get, places: Places) -> None:
    start_hub({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"})
    assert get() == places.loras / "tiny"
    assert get(kind="model") == places.models / "tiny"


def test_empty_files(start_hub: StartHub, get: Get) -> None:
    start_hub({"empty": b"", "full": b"x"})
    assert content(get()) == {"empty": b"", "full": b"x"}


def test_sizes_are_checked_before(
    start_hub: StartHub, get: Any, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub()
    with pytest.raises(InvalidRequestError, match="`max_download_bytes` in the config allows 100"):
        get(places=Places(places.models, places.loras, max_bytes=100))
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5000))
    with pytest.raises(DiskFullError, match="10,248 bytes left to download"):
        get()
    assert hub.fetched == []
    assert not places.models.exists()


def test_a_disk_that_fills_up(
    start_hub: StartHub, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_hub()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Hub, "_append", full)
    with pytest.raises(DiskFullError, match="the disk is full"):
        get()


def test_http_has_no_larger_files(
    start_hub: StartHub, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**12))
    hub.sizes["model.safetensors"] = 60_000_000_000
    with pytest.raises(InvalidRequestError, match="larger than 50 GB") as caught:
        get()
    assert caught.value.param == "exclude"
    assert "model.safetensors" not in [name for name, _ in hub.fetched]


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (404, "RepoNotFound", RepositoryNotFoundError, "has no repository tests/tiny"),
        (401, "RepoNotFound", RepositoryNotFoundError, "for a private one send `token`"),
        (401, "", RepositoryForbiddenError, "the hub denied access"),
        (403, "GatedRepo", RepositoryForbiddenError, "is gated: accept its terms"),
        (403, "", RepositoryForbiddenError, "the hub denied access"),
        (404, "RevisionNotFound", RepositoryNotFoundError, "has no revision 'dev'"),
        (500, "", HubError, "the hub answered 500"),
        (429, "", HubError, "the hub answered 429"),
    ],
)
def test_refusals_of_the_hub(
    start_hub: StartHub, get: Get, status: int, code: str, error: Any, message: str
) -> None:
    start_hub(status=status, code=code)
    with pytest.raises(error, match=message):
        get(revision="dev")


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ({"sizes": {"config.json": None}}, "reports no size for config.json"),
        ({"digests": {"config.json": "x"}}, "reports no hash for config.json"),
        ({"commit": "../../x"}, "returned no commit"),
        ({"files": {"//": b""}}, "reports a file without a name"),
    ],
)
def test_answers_that_make_no_sense(
    start_hub: StartHub, get: Get, faults: dict[str, Any], message: str
) -> None:
    start_hub(**faults)
    with pytest.raises(HubError, match=message):
        get()


@pytest.mark.parametrize("repo_id", ["a/b/c", "..", "a/..", "", "a b", "-x/y"])
def test_names_of_repositories(start_hub: StartHub, get: Get, repo_id: str) -> None:
    start_hub()
    with pytest.raises(InvalidRequestError) as caught:
        get(repo_id=repo_id)
    assert caught.value.param == "repo_id"


def test_without_a_network(get: Get, start_hub: StartHub, monkeypatch: pytest.MonkeyPatch) -> None:
    start_hub()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="the hub cannot be reached"):
        get()


def test_offline(get: Get, start_hub: StartHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = start_hub()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        get()
    assert hub.asked == []


def test_the_token_of_the_environment(
    get: Get, start_hub: StartHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = start_hub()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    get()
    sent = {(path.startswith("/cdn/"), token) for path, _, token in hub.asked}
    assert sent == {(True, None), (False, f"Bearer {TOKEN}")}


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_is_busy_is_asked_again(get: Get, start_hub: StartHub, status: int) -> None:
    hub = start_hub(refusals={"config.json": [status] * 3})
    assert content(get()) == FILES
    hub.refusals["config.json"] = [404]
    hub.files["config.json"] = b"[]"
    with pytest.raises(HubError, match="the hub answered 404"):
        get()


def test_its_time_is_up(start_hub: StartHub, get: Get) -> None:
    start_hub()
    with pytest.raises(DownloadTimeoutError, match="exceeded its `timeout`"):
        get(timeout=1e-9)


MANY = {f"{number}.txt": b"" for number in range(1000)}


class Late(Control):
    """Reaches its timeout at the check of this number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left_checks = number

    def check(self) -> None:
        self.left_checks -= 1
        if self.left_checks < 0:
            raise self.too_late()


@pytest.mark.parametrize("number", [1, 1000, 2500, 3500])
def test_many_files_do_not_delay_the_timeout(
    start_hub: StartHub, places: Places, number: int
) -> None:
    # SEC-12: each pass over the files looks at the clock, before the first one is fetched.
    hub = start_hub(MANY)
    with pytest.raises(DownloadTimeoutError):
        download(Wanted(repo_id=REPO), places, lambda _: None, Late(number))
    assert hub.fetched == []


def test_many_files_take_no_record_each(
    start_hub: StartHub, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    # SEC-12: the record has all files, so a record for each would take the square of their number.
    written: list[str] = []
    write = Path.write_text

    def count(path: Path, text: str, **more: Any) -> int:
        written.append(text)
        return write(path, text, **more)

    monkeypatch.setattr(Hub, "fetch", lambda hub, file, commit, part, on_bytes: part.touch())
    monkeypatch.setattr(Path, "write_text", count)
    start_hub(MANY)
    folder = get()
    assert set(content(folder)) == set(MANY)
    assert sum(map(len, written)) < 80 * len(written[-1])


class TestDownloads:
    """Several of them, over the event loop."""

    async def test_the_timeout_holds_while_the_hub_says_nothing(
        self, start_hub: StartHub, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # SEC-12: a thread that waits for a connection cannot look at the clock.
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 3600)
        gate = threading.Event()
        start_hub(gates={"model.safetensors": gate}, breaks={"model.safetensors": [5000]})
        downloads = Downloads(places)
        async with asyncio.timeout(60):
            with pytest.raises(DownloadTimeoutError):
                async for _ in downloads.run(Wanted(repo_id=REPO, timeout=1)):
                    pass
        gate.set()
        await until(lambda: not downloads._taken)
        downloads.close()

    async def test_the_last_report_has_the_path(self, start_hub: StartHub, places: Places) -> None:
        start_hub()
        downloads = Downloads(places)
        said = [each async for each in downloads.run(Wanted(repo_id=REPO))]
        assert said[-1].path == places.models / "tiny"
        assert {each.path for each in said[:-1]} == {None}
        downloads.close()

    async def test_one_at_a_time_and_closing_stops_it(
        self, start_hub: StartHub, places: Places
    ) -> None:
        gate = threading.Event()
        hub: FakeHub = start_hub(
            gates={"model.safetensors": gate}, breaks={"model.safetensors": [5000]}
        )
        downloads = Downloads(places)
        async with aclosing(downloads.run(Wanted(repo_id=REPO))) as progress:
            async for each in progress:
                if each.file == "model.safetensors" and each.completed >= 5000:
                    break
            for wanted in (
                Wanted(repo_id=REPO.upper(), folder_name="other"),
                Wanted(repo_id="other/tiny"),
            ):
                with pytest.raises(DownloadConflictError, match="is already being downloaded"):
                    await anext(downloads.run(wanted))
        gate.set()
        await until(lambda: not downloads._taken)
        folder = places.models / "tiny"
        assert not (folder / "model.safetensors").exists()
        hub.gates.clear()
        async for _ in downloads.run(Wanted(repo_id=REPO)):
            pass
        assert content(folder) == FILES
        assert ("model.safetensors", "bytes=5000-") in hub.fetched
        downloads.close()

    async def test_errors_come_out(self, start_hub: StartHub, places: Places) -> None:
        start_hub(status=404, code="RepoNotFound")
        downloads = Downloads(places)
        with pytest.raises(RepositoryNotFoundError):
            await anext(downloads.run(Wanted(repo_id=REPO)))
        start_hub()
        assert [each async for each in downloads.run(Wanted(repo_id=REPO))]
        downloads.close()


def test_control_stops(start_hub: StartHub, places: Places) -> None:
    start_hub()
    control = Control()
    control.stop()
    with pytest.raises(StoppedError):
        download(Wanted(repo_id=REPO), places, lambda _: None, control)
