"""The machines of a cluster on the page, and the engines on them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from enginebay.server.access import keys_file
from enginebay_cluster.bodies import ClusterBody
from enginebay_cluster.contract import ClusterError
from tests.api.test_cluster_route import STATUS, FakeCluster, clustered
from tests.conftest import ServeScripted
from tests.page.support import answers
from tests.support import Server

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

LONG = "a-very-long-name-" * 12


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def server(cluster: FakeCluster) -> Iterator[Server]:
    with clustered(cluster) as running:
        yield running


def section(page: "Page", server: Server) -> "Locator":
    """The section, once it is there."""
    page.goto(f"{server.url}/#models")
    found = page.locator("#cluster")
    found.wait_for()
    return found


def lines(element: "Locator") -> list[str]:
    return [line for line in element.inner_text().splitlines() if line.strip()]


def test_nodes_and_their_engines(page: "Page", server: Server) -> None:
    """SCALE-20, on the page."""
    shown = section(page, server)
    assert shown.locator("#cluster-free").inner_text() == (
        "2 of 3 nodes alive · 21.5 of 24 CPUs free · 0.5 of 2 GPUs free"
    )
    nodes = shown.get_by_role("list", name="Nodes").locator("> li")
    assert [lines(node) for node in nodes.all()] == [
        ["10.0.0.1", "alive", "8 of 8 CPUs free", "head", "rack"],
        [
            "10.0.0.2",
            "alive",
            "13.5 of 16 CPUs free · 0.5 of 2 GPUs free",
            "chat",
            "ready",
            "3 running · 1 waiting · 18.0 GiB GPU · 2.0 GiB RAM",
            "small",
            "ready",
            "0 running",
        ],
        ["10.0.0.3", "dead", "chat", "unavailable", "its node is dead"],
        ["On no node yet", "chat", "starting"],
    ]


def test_models_that_lack_engines_are_marked(page: "Page", server: Server) -> None:
    models = section(page, server).get_by_role("list", name="Models in the cluster").locator("li")
    assert [lines(model) for model in models.all()] == [
        ["chat", "1 of 2 engines ready", "no node has a free GPU for 1 engine"],
        ["small", "1 of 1 engine ready"],
    ]
    assert models.locator(".error").all_inner_texts() == ["no node has a free GPU for 1 engine"]
    assert [model.get_attribute("data-state") for model in models.all()] == ["short", "ready"]


def test_what_changes_is_shown_and_nothing_else(
    page: "Page", server: Server, cluster: FakeCluster
) -> None:
    shown = section(page, server)
    first = shown.locator("#cluster-nodes > li").first.element_handle()
    engines = [replace(STATUS.engines[0], state="draining"), *STATUS.engines[1:]]
    cluster.said = replace(STATUS, engines=engines)
    shown.locator("#cluster-nodes .state", has_text="draining").wait_for()
    shown.get_by_text("0 of 2 engines ready").wait_for()
    assert first.evaluate("(element) => element.isConnected")  # what is selected stays selected
    cluster.said = replace(STATUS, nodes=STATUS.nodes[1:])
    shown.get_by_text("10.0.0.1").wait_for(state="detached")


def test_a_cluster_that_is_lost_and_found(
    page: "Page", server: Server, cluster: FakeCluster
) -> None:
    shown = section(page, server)
    cluster.said = ClusterError("nothing listens at 10.0.0.1:6379; run `enginebay cluster up`")
    shown.get_by_role("alert").get_by_text("nothing listens at 10.0.0.1:6379").wait_for()
    assert shown.get_by_text("10.0.0.2").is_visible()
    cluster.said = STATUS
    shown.get_by_role("alert").wait_for(state="hidden")


def test_it_is_asked_for_only_while_it_is_looked_at(page: "Page", server: Server) -> None:
    asked = answers(page, "v1/cluster", ClusterBody.of(STATUS).model_dump())
    with page.expect_response("**/v1/auth/permission"):
        page.goto(server.url)
    page.locator("#running .card").first.wait_for()
    assert asked == []
    page.get_by_role("link", name="Models", exact=True).click()
    page.locator("#cluster").wait_for()
    assert asked


def test_a_server_in_no_cluster_has_no_section(page: "Page", serve_scripted: ServeScripted) -> None:
    server = serve_scripted(["ok"])
    with page.expect_response("**/v1/cluster") as response:
        page.goto(f"{server.url}/#models")
    page.locator("#all-models .card").wait_for()
    assert response.value.status == 404
    assert not page.locator("#cluster").is_visible()
    answers(page, "v1/cluster", ClusterBody.of(STATUS).model_dump())  # it was started with one
    page.get_by_role("link", name="Chat").click()
    page.get_by_role("link", name="Models", exact=True).click()
    page.locator("#cluster").wait_for()


def test_it_is_for_admins(page: "Page", tmp_path: Path, cluster: FakeCluster) -> None:
    keys = tmp_path / "keys.yml"
    root = keys_file.new_entry("root", "an-admin-key", "admin")
    keys_file.create(keys, [keys_file.new_entry("friend", "a-user-key"), root])
    with clustered(cluster, keys_file=str(keys), auth="required") as server:
        page.goto(f"{server.url}/#models")
        dialog = page.get_by_role("dialog")

        def use(key: str) -> None:
            dialog.get_by_label("Key", exact=True).fill(key)
            dialog.get_by_role("button", name="Use key").click()

        use("a-user-key")
        page.locator("#running .card").first.wait_for(state="attached")
        page.get_by_text("Models are managed with an admin key").wait_for()
        assert cluster.asked == 0
        page.get_by_role("button", name="Enter a key").click()
        use("an-admin-key")
        page.locator("#cluster").wait_for()
        page.get_by_role("button", name="Key").click()
        use("a-user-key")
        page.locator("#cluster").wait_for(state="hidden")


def test_memory_is_for_models_of_this_machine(
    page: "Page", server: Server, cluster: FakeCluster
) -> None:
    cluster.said = replace(STATUS, models=[])
    section(page, server)
    page.get_by_role("button", name="Memory of chat", exact=True).click()
    page.locator(".memory-result").get_by_text("run on machines of the cluster").wait_for()
    cluster.said = STATUS
    page.get_by_role("button", name="Memory of chat", exact=True).wait_for(state="hidden")
    page.locator(".memory-result").first.wait_for(state="hidden")
    assert page.get_by_role("button", name="Memory of here", exact=True).is_visible()


def test_it_fits_a_phone(page: "Page", server: Server) -> None:
    said: Any = ClusterBody.of(STATUS).model_dump()
    said["nodes"][0] |= {"address": LONG, "labels": [LONG, "small"]}
    said["models"][0] |= {"name": LONG, "message": LONG}
    said["engines"][0] |= {"model": LONG}
    said["engines"][3] |= {"reason": LONG}
    answers(page, "v1/cluster", said)
    page.set_viewport_size({"width": 320, "height": 640})
    shown = section(page, server)
    boxes = [each.bounding_box() for each in shown.locator("h2, h3, p, li, span").all()]
    visible = [box for box in boxes if box]
    assert visible
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 320 for box in visible)
    assert page.evaluate(
        """() => {
          const { scrollWidth, clientWidth } = document.querySelector("#models");
          return scrollWidth <= clientWidth;
        }"""
    )
