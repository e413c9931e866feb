"""Checks of `/api/v1` and `/api/extra`, the API of KoboldAI and KoboldCpp."""

from enginebay_conformance.endpoint import Endpoint, Json, answered
from enginebay_conformance.events import ask, asked_or_refused, events
from enginebay_conformance.expect import expect
from enginebay_conformance.run_checks import check

GENERATE, STREAM = "/api/v1/generate", "/api/extra/generate/stream"


def _body(server: Endpoint, **fields: object) -> Json:
    """A small request: greedy, and short unless the fields say otherwise."""
    usual = {"prompt": "Once upon a time", "max_length": 24, "temperature": 0}
    return {"model": server.model, **usual, **fields}


@check("KOB-1", "KOB-2", optional="prompts")
def kobold_streamed_is_whole(server: Endpoint) -> None:
    """The tokens of a stream are the whole text; only the last event has a `finish_reason`."""
    [whole] = asked_or_refused(server, GENERATE, _body(server))["results"]
    stream = events(ask(server, STREAM, _body(server)))
    expect({each.name for each in stream} == {"message"}, "events are not named message")
    text = "".join(each.data["token"] for each in stream)
    expect(text == whole["text"], f"{text!r} streamed, {whole['text']!r} whole")
    reasons = [each.data.get("finish_reason") for each in stream]
    expect(reasons[:-1] == [None] * (len(reasons) - 1), f"the reasons are {reasons}")
    expect(reasons[-1] in ("stop", "length"), f"the last reason is {reasons[-1]!r}")


@check("KOB-6", optional="prompts")
def kobold_counts_tokens(server: Endpoint) -> None:
    """`tokencount` has the ids and their number, and without `special` no BOS."""
    with_bos, without = (
        asked_or_refused(
            server, "/api/extra/tokencount", {"prompt": "A train.", "special": special}
        )
        for special in (True, False)
    )
    for counted in (with_bos, without):
        expect(counted["value"] == len(counted["ids"]), f"{counted['value']} are not the ids")
    expect(with_bos["ids"][-without["value"] :] == without["ids"], "the ids differ")


@check("KOB-3", "KOB-5", "KOB-12")
def kobold_says_what_it_is(server: Endpoint) -> None:
    """The versions, the model and the limits are told; an abort without a body is answered."""
    ask(server, "/api/extra/abort", {})
    for path in ("/api/v1/info/version", "/api/latest/model", "/api/extra/version"):
        result = answered(server.http.get(path)).json().get("result")
        expect(isinstance(result, str) and bool(result), f"{path} says {result!r}")
    for path in ("/api/v1/config/max_length", "/api/extra/true_max_context_length"):
        value = answered(server.http.get(path)).json().get("value")
        expect(type(value) is int and value > 0, f"{path} says {value!r}")
    aborted = answered(server.http.post("/api/extra/abort")).json()
    expect("success" in aborted, f"abort says {aborted}")


@check("KOB-10")
def kobold_errors_have_a_detail(server: Endpoint) -> None:
    """An error has a `detail` with a message."""
    response = ask(server, GENERATE, {"prompt": 5, "model": server.model})
    expect(400 <= response.status_code < 500, f"{response.status_code}: {response.text[:100]}")
    detail = response.json().get("detail")
    told = isinstance(detail, dict) and isinstance(detail.get("msg"), str)
    expect(told, f"the error is {response.text[:100]}")


CHECKS = (
    kobold_streamed_is_whole,
    kobold_counts_tokens,
    kobold_says_what_it_is,
    kobold_errors_have_a_detail,
)
