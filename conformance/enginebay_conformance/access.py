"""Checks of routes, models, keys and headers."""

from enginebay_conformance.endpoint import CHAT, Endpoint
from enginebay_conformance.expect import NotShown, expect
from enginebay_conformance.run_checks import check


@check()
def routes_work_without_v1(server: Endpoint) -> None:
    """`/models` and `/chat/completions` are the same as under `/v1`."""
    for path in ("/v1/models", "/models"):
        response = server.http.get(path)
        expect(response.status_code == 200, f"{path} gave {response.status_code}")
        ids = [card["id"] for card in response.json()["data"]]
        expect(server.model in ids, f"{path} lists {ids}")
    for path in (CHAT, CHAT.removeprefix("/v1")):
        response = server.post(path, server.chat_body(max_tokens=1))
        expect(response.status_code == 200, f"{path} gave {response.status_code}")


@check("WEB-39")
def model_can_be_left_out(server: Endpoint) -> None:
    """A request without `model` is answered."""
    body = server.chat_body(max_tokens=1)
    del body["model"]
    response = server.post(CHAT, body)
    expect(response.status_code == 200, f"{response.status_code} {response.text[:120]}")


@check("MLC-37")
def ids_with_slashes_can_be_retrieved(server: Endpoint) -> None:
    """Every listed model can be retrieved by its id, slashes and all."""
    ids = [card["id"] for card in server.http.get("/v1/models").json()["data"]]
    for id in ids:
        response = server.http.get(f"/v1/models/{id}")
        expect(response.status_code == 200, f"{id} gave {response.status_code}")
        expect(response.json()["id"] == id, f"{id} gave {response.json()}")
    if not any("/" in id for id in ids):
        raise NotShown("no model has a slash in its id")


@check("MLC-31")
def any_key_will_do_without_keys(server: Endpoint) -> None:
    """A server without keys takes any, in either header, or none at all."""
    if server.api_key:
        raise NotShown("the server has keys")
    keys = ("Bearer not-needed", "Bearer", "")
    for headers in ({"x-api-key": "not-needed"}, *({"Authorization": key} for key in keys)):
        response = server.http.get("/v1/models", headers=headers)
        expect(response.status_code == 200, f"{headers} gave {response.status_code}")


@check()
def keys_are_asked_for_in_both_headers(server: Endpoint) -> None:
    """A server with keys takes them in `Authorization` and `x-api-key`; a wrong one is 401."""
    if not server.api_key:
        raise NotShown("no key was given, so that the server may have none")
    tried = (
        ({"Authorization": f"Bearer {server.api_key}"}, 200),
        ({"Authorization": "", "x-api-key": server.api_key}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": ""}, 401),
    )
    for headers, status in tried:
        response = server.http.get("/v1/models", headers=headers)
        named = ", ".join(headers)
        expect(response.status_code == status, f"{named}: {response.status_code}, not {status}")
        if status == 401:
            expect("error" in response.json(), f"401 with {response.text[:80]}")


@check("MLC-9", "VLLM-27")
def request_id_is_the_clients(server: Endpoint) -> None:
    """`X-Request-Id` is in the answer's `id` and comes back as a header."""
    response = server.post(CHAT, server.chat_body(max_tokens=1), {"X-Request-Id": "check-7"})
    expect(response.status_code == 200, f"{response.status_code} {response.text[:120]}")
    expect(response.json()["id"] == "chatcmpl-check-7", f"the id is {response.json()['id']!r}")
    sent = response.headers.get("x-request-id")
    expect(sent == "check-7", f"the header is {sent!r}")


@check()
def browsers_are_kept_out(server: Endpoint) -> None:
    """No web page may call the server unless that is configured."""
    answer = server.http.get("/v1/models", headers={"Origin": "http://evil.example"})
    allowed = answer.headers.get("access-control-allow-origin")
    expect(allowed is None, f"access-control-allow-origin is {allowed!r}")


CHECKS = (
    routes_work_without_v1,
    model_can_be_left_out,
    ids_with_slashes_can_be_retrieved,
    any_key_will_do_without_keys,
    keys_are_asked_for_in_both_headers,
    request_id_is_the_clients,
    browsers_are_kept_out,
)
