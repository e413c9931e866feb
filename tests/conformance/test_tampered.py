"""Each check fails when a server does the thing wrong that the check is for."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import httpx2
import pytest
from openai import OpenAI

from enginebay_conformance.checks import CHECKS
from enginebay_conformance.endpoint import Endpoint
from enginebay_conformance.run_checks import Check, run_checks
from tests.support import Server


@dataclass
class Answer:
    """What the server sent, to be changed on the way."""

    request: httpx2.Request
    status: int
    headers: dict[str, str]
    content: bytes


Edit = Callable[[Answer], None]


def text(pattern: str, new: str) -> Edit:
    """Change all text like this."""

    def edit(answer: Answer) -> None:
        answer.content = re.sub(pattern, new, answer.content.decode(), flags=re.DOTALL).encode()

    return edit


def status(code: int) -> Edit:
    """Answer with another status."""

    def edit(answer: Answer) -> None:
        answer.status = code

    return edit


def header(name: str, value: str) -> Edit:
    """Answer with another header."""

    def edit(answer: Answer) -> None:
        answer.headers[name] = value

    return edit


def asked(pattern: str, inner: Edit) -> Edit:
    """Only answers to requests like this, in path or body."""

    def edit(answer: Answer) -> None:
        request = answer.request
        if re.search(pattern, f"{request.url.path} {request.content.decode(errors='replace')}"):
            inner(answer)

    return edit


def unless(pattern: str, inner: Edit) -> Edit:
    """Only answers to requests unlike this."""
    return asked(rf"(?s)\A(?!.*({pattern}))", inner)


def streamed(pattern: str, new: str) -> Edit:
    """Only streams."""
    return asked('"stream": ?true', text(pattern, new))


def numbered(pattern: str) -> Edit:
    """Put a number behind text like this, another one in each answer."""
    numbers = count()

    def edit(answer: Answer) -> None:
        text(f"({pattern})", rf"\g<1> {next(numbers)}")(answer)

    return edit


def gone(answer: Answer) -> None:
    """What a server answers that works on for clients that left."""
    answer.status = 503


LATE_ROLE = streamed('("role": ?"assistant", ?)?"content": ?""', '"content":""')
TWICE = streamed(r'(data: [^\n]*"finish_reason": ?"\w+"[^\n]*\n\n)', r"\1\1")
NO_USAGE = text(r', ?"usage": ?\{.*?\}\}', "")
NO_BYTES = text(r'"logprob": ?-?[\d.]+', '"logprob":null')

TAMPERED: dict[str, Edit] = {
    "routes_work_without_v1": unless("/v1/", status(404)),
    "model_can_be_left_out": unless('"model":|models', status(404)),
    "ids_with_slashes_can_be_retrieved": asked("models/", status(404)),
    "any_key_will_do_without_keys": status(401),
    "keys_are_asked_for_in_both_headers": status(200),
    "request_id_is_the_clients": header("x-request-id", "another"),
    "browsers_are_kept_out": header("access-control-allow-origin", "*"),
    "whole_answer_is_complete": text('"chat.completion"', '"chat"'),
    "created_is_in_seconds": text(r'("created": ?\d+)', r"\g<1>000"),
    "what_is_not_there_is_null": text('("content":)', r'"tool_calls":[],\1'),
    "ids_are_unique": text('"chatcmpl-[^"]*"', '"chatcmpl-1"'),
    "same_seed_has_the_same_answer": numbered("train"),
    "n_choices": text('"index": ?2', '"index":1'),
    "stop_strings_end_an_answer": asked('"stop"', text('("content": ?"The)', r"\1 train")),
    "stop_reason_says_which": streamed('"stop_reason"', '"reason"'),
    "system_message_is_optional": text(r'"prompt_tokens": ?\d+', '"prompt_tokens":9'),
    "text_parts_are_joined": asked('"type": ?"text"', text(r'"prompt_tokens": ?', r"\g<0>9")),
    "history_of_calls_is_taken": asked("tool_call_id", status(400)),
    "broken_arguments_in_the_history_are_taken": asked("broken", status(400)),
    "reasoning_is_apart": text('("reasoning_content": ?")', r"\1<think>"),
    "stream_is_framed": streamed(r"data: \[DONE\]\n\n", ""),
    "chunks_agree": streamed(r'"created": ?\d+(?=[^\n]*"length")', '"created":5'),
    "each_choice_begins_with_its_role": LATE_ROLE,
    "each_choice_finishes_once": TWICE,
    "deltas_say_something": streamed('("content": ?"[^"])', r'"refusal":null,\1'),
    "chunks_do_not_look_like_errors": streamed('"object":', '"message":"","object":'),
    "streamed_is_whole": streamed("train", "plane"),
    "max_tokens_end_with_length": streamed('"length"', '"stop"'),
    "text_is_not_escaped": streamed("本", r"\\u672c"),
    "eight_at_a_time_are_answered": text('"chatcmpl-[^"]*"', '"chatcmpl-1"'),
    "fingerprint_is_the_same": streamed('("system_fingerprint": ?")', r"\1x"),
    "leaving_ends_the_work": gone,
    "whole_answer_has_usage": NO_USAGE,
    "stream_ends_with_usage": streamed(r'"choices": ?\[\]', '"choices":[{"index":0,"delta":{}}]'),
    "usage_comes_only_when_asked_for": streamed('"object":', '"usage":{"x":1},"object":'),
    "prompt_is_counted_once": asked('"n": ?3', text(r'"prompt_tokens": ?', r"\g<0>9")),
    "streams_count_as_whole_answers": streamed(r'"completion_tokens": ?', r"\g<0>9"),
    "cached_tokens_are_told": text("cached_tokens", "kept_tokens"),
    "usage_can_be_continuous": streamed(r'"completion_tokens": ?0', '"completion_tokens":1'),
    "continuous_usage_must_be_asked_for": streamed('"object":', '"usage":{"x":1},"object":'),
    "extra_times_are_numbers": text('"decode_tokens_per_s": ?[^,}]+', '"decode_tokens_per_s":null'),
    "entries_are_complete": NO_BYTES,
    "candidates_are_as_many_as_asked_for": text(r'"top_logprobs": ?\[\]', '"top_logprobs":null'),
    "tokens_are_those_of_the_content": text('"token": ?"t"', '"token":"<t>"'),
    "streamed_entries_are_the_whole_ones": streamed('"token": ?"t"', '"token":"T"'),
    "completions_have_the_old_shape": text(r'"text_offset": ?\[[^]]*\]', '"text_offset":[0]'),
    "tools_reach_the_model": text(r'"prompt_tokens": ?\d+', '"prompt_tokens":9'),
    "no_calls_with_choice_none": asked('"none"', text('"stop"|"length"', '"tool_calls"')),
    "calls_are_complete": text(r'"arguments": ?"(\{.*?\})"', r'"arguments":{}'),
    "streamed_calls_are_the_whole_ones": streamed(
        r'"tool_calls": ?\[\{"index": ?1', '"tool_calls":[{"index":0'
    ),
    "finish_says_calls_only_if_there_are_some": text('"tool_calls": ?\\[.*?\\]', '"calls":[]'),
    "required_calls_are_made": text('"get_(weather|time)"', '"get_out"'),
    "streamed_required_calls_are_the_whole_ones": streamed('"get_', '"got_'),
    "named_function_is_called": text('"stop"', '"tool_calls"'),
    "reasoning_comes_before_forced_calls": streamed('"tool_calls"', '"reasoning_content"'),
    "parallel_calls_can_be_forbidden": text(r'("tool_calls": ?\[)(\{.*?\})\]', r"\1\2,\2]"),
    "calls_of_free_answers_are_valid": text("city", "town"),
    "calls_that_cannot_be_are_refused": status(200),
    "schemas_are_kept": text("fragile", "solid"),
    "schemas_bind_each_choice": asked('"n": ?2', text("fragile", "solid")),
    "json_object_is_an_object": text(r'"content": ?"\{', '"content":"["'),
    "constraints_bind_behind_thought": text("fragile", "solid"),
    "torn_json_ends_with_length": streamed('"length"', '"stop"'),
    "answers_are_one_of_the_choices": text('"red"|"green"', '"blue"'),
    "answers_match_regular_expressions": text(r'("content": ?"\d+)-', r"\1/"),
    "schemas_have_other_names": asked("guided_json", text("fragile", "solid")),
    "empty_schemas_do_no_harm": asked("json_schema", status(400)),
    "times_of_grammars_are_numbers": text('"grammar_init_s": ?[^,}]+', '"grammar_init_s":null'),
    "completion_is_complete": text("text_completion", "text"),
    "streamed_completion_is_the_whole_one": streamed("train", "plane"),
    "prompts_can_be_several_or_tokens": text('"index": ?2', '"index":1'),
    "empty_prompts_are_refused": status(422),
    "whole_answers_validate": text('"index":', '"number":'),
    "chunks_validate": streamed('"created": ?([0-9]+)', r'"created":"\1"'),
    "completions_validate": text('"created": ?([0-9]+)', r'"created":"\1"'),
    "models_validate": text('"owned_by"', '"owner"'),
    "stream_helper_understands_streams": streamed('"get_weather"', '"get_wether"'),
    "parse_helper_understands_answers": text(r'"arguments": ?"\{.*?\}"', '"arguments":"3"'),
    "parse_helper_understands_schemas": text("fragile", "solid"),
    "exceptions_are_the_sdks": asked("no-such-model", status(422)),
    "unknown_model_is_not_found": text("model_not_found", "not_found"),
    "wrong_values_are_refused": status(422),
    "streams_fail_with_a_status": header("content-type", "text/event-stream"),
    "a_body_that_is_no_json_is_refused": status(500),
    "schemas_that_are_none_are_refused": asked("nonsense", status(200)),
    "a_prompt_that_does_not_fit_is_refused": text("context_length_exceeded", "too_long"),
    "unknown_fields_do_no_harm": asked("no_such_field", status(400)),
    "values_that_mean_off_do_no_harm": asked("json_schema", status(400)),
    "all_fields_of_openai_are_taken": asked("somebody", status(400)),
    "unknown_routes_have_an_error_object": text('"error"', '"detail"'),
    "responses_events_are_counted": text('("sequence_number": ?)3', r"\g<1>2"),
    "responses_items_open_and_close": text('("output_index": ?)0', r"\g<1>1"),
    "responses_streamed_is_whole": streamed("train", "plane"),
    "responses_are_complete": text('("parallel_tool_calls": ?)true', r'\1"yes"'),
    "responses_say_that_they_were_cut": text('"incomplete"', '"completed"'),
    "responses_to_nothing_are_answered": asked('"input": ?""', status(400)),
    "responses_can_be_chained": asked("previous_response_id", status(500)),
    "responses_tokens_can_be_counted": asked("/input_tokens", text(r"\d+", "5")),
    "messages_blocks_open_and_close": text("event: content_block_stop\n", ""),
    "messages_count_their_tokens": streamed('"input_tokens": ?', r"\g<0>9"),
    "messages_streamed_is_whole": streamed("train", "plane"),
    "messages_errors_are_anthropics": text("invalid_request_error", "bad_request"),
    "messages_tools_can_be_forced": text('"tool_use"', '"text"'),
    "messages_models_have_both_forms": text('"display_name"', '"name"'),
    "ollama_streams_lines": text('("done": ?)true', r"\1false"),
    "ollama_streamed_is_whole": unless('"stream": ?false', text("train", "plane")),
    "ollama_generates": asked('"raw": ?true', text('("prompt_eval_count": ?)', r"\g<1>9")),
    "ollama_errors_are_texts": text('"error": ?(".*")', r'"error":{"message":\1}'),
    "ollama_format_is_enforced": text("7", "8"),
    "ollama_lists_its_models": asked("/api/version", text(r"\d", "x")),
    "kobold_streamed_is_whole": asked("/stream", text("train", "plane")),
    "kobold_counts_tokens": text('("value": ?)', r"\g<1>9"),
    "kobold_says_what_it_is": asked("extra/version", text('"result"', '"name"')),
    "kobold_errors_have_a_detail": text('"detail"', '"error"'),
}


class Tampering(httpx2.BaseTransport):
    """Passes requests on to a server and changes what it answers."""

    def __init__(self, edit: Edit) -> None:
        self._inner = httpx2.HTTPTransport()
        self._edit = edit

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._edit is gone:
            return httpx2.Response(503)
        response = self._inner.handle_request(request)
        content = response.read()
        names = ("content-length", "transfer-encoding")
        headers = {name: value for name, value in response.headers.items() if name not in names}
        answer = Answer(request, response.status_code, headers, content)
        self._edit(answer)
        return httpx2.Response(answer.status, headers=answer.headers, content=answer.content)

    def close(self) -> None:
        self._inner.close()


@contextmanager
def tampered(server: Server, edit: Edit, api_key: str | None) -> Iterator[Endpoint]:
    card = server.http.get("/v1/models").json()["data"][0]
    with (
        httpx2.Client(transport=Tampering(edit), base_url=server.url, timeout=60) as http,
        OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0, http_client=http) as sdk,
    ):
        yield Endpoint(http, sdk, card, api_key)


def test_every_check_has_something_that_breaks_it() -> None:
    assert list(TAMPERED) == [check.name for check in CHECKS]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_server_that_does_it_wrong(scripted_server: Server, check: Check) -> None:
    name = check.name
    api_key = "one" if name == "keys_are_asked_for_in_both_headers" else None
    with tampered(scripted_server, TAMPERED[name], api_key) as endpoint:
        [result] = run_checks(endpoint, [check])
        assert result.outcome == "fail"
        assert result.seen
