"""Clients of the Responses API as people use them: openai, openai-agents, langchain-openai."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import agents
import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseTextDeltaEvent,
)
from pydantic import BaseModel, SecretStr

from tests.apis.response_events import THOUGHT, WEATHER, Saying, call, say, saying

CITY = say(*THOUGHT, *call("weather", city="Oslo"))


@pytest.fixture(scope="module")
def at() -> Iterator[Saying]:
    with saying() as server:
        yield server


class Answer(BaseModel):
    """What an answer is parsed into."""

    city: str
    days: int


def test_openai(at: Saying) -> None:
    responses = at.server.openai.responses
    answer = responses.create(model="scripted", input=say(*THOUGHT, "Hello"), temperature=0)
    assert answer.output_text == "Hello"
    assert [item.type for item in answer.output] == ["reasoning", "message"]
    assert answer.usage
    assert answer.usage.output_tokens_details.reasoning_tokens == len(THOUGHT)
    assert responses.retrieve(answer.id) == answer
    more = responses.create(model="scripted", input="hi", previous_response_id=answer.id)
    assert more.previous_response_id == answer.id
    listed = list(responses.input_items.list(answer.id, limit=1, order="asc"))
    assert [item.type for item in listed] == ["message"]
    responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(answer.id)
    raw = responses.with_raw_response.create(
        model="scripted", input="hi", extra_body={"made_up": 1}
    )
    assert raw.headers["x-unsupported-params"] == "made_up"
    assert raw.parse().output_text == "ok"


def test_openai_errors(at: Saying) -> None:
    # RESP-22
    with pytest.raises(openai.BadRequestError) as caught:
        at.server.openai.responses.create(
            model="scripted", input="hi", previous_response_id="resp_nobody"
        )
    assert caught.value.param == "previous_response_id"
    assert caught.value.code == "previous_response_not_found"


def test_openai_streams(at: Saying) -> None:
    cases: Any = ((say(*THOUGHT, *"Hello"), openai.omit), (CITY, [WEATHER]))
    for said, tools in cases:
        with at.server.openai.responses.stream(
            model="scripted",
            input=said,
            tools=tools,
            reasoning={"summary": "auto"},
        ) as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert isinstance(events[-1], ResponseCompletedEvent)
        deltas = [event.delta for event in events if isinstance(event, ResponseTextDeltaEvent)]
        assert "".join(deltas) == final.output_text
        assert final.output[0].type == "reasoning"


def test_openai_parses(at: Saying) -> None:
    # RESP-15
    said = say(*'{"city": "Oslo", "days": 2}')
    responses = at.server.openai.responses
    parsed = responses.parse(model="scripted", input=said, text_format=Answer)
    assert parsed.output_parsed == Answer(city="Oslo", days=2)
    with responses.stream(model="scripted", input=said, text_format=Answer) as stream:
        assert stream.until_done().get_final_response().output_parsed == Answer(city="Oslo", days=2)


def test_history_is_sent_back(at: Saying) -> None:
    """What the SDK gives, given back as it is."""
    responses = at.server.openai.responses
    first = responses.create(model="scripted", input=CITY, tools=[WEATHER])  # type: ignore[list-item]
    made = first.output[-1]
    assert made.type == "function_call"
    output = {"type": "function_call_output", "call_id": made.call_id, "output": "4 degrees"}
    items: Any = [{"role": "user", "content": CITY}, *first.output, output]
    second = responses.create(model="scripted", input=items, tools=[WEATHER])  # type: ignore[list-item]
    assert second.output_text == "Done."


@agents.function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"4 degrees in {city}"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("chained", [False, True])
def test_openai_agents(at: Saying, streamed: bool, chained: bool) -> None:
    # RESP-38
    agents.set_tracing_disabled(True)

    async def run() -> Any:
        async with at.server.async_openai() as client:
            model = agents.OpenAIResponsesModel("scripted", client)
            agent = agents.Agent(name="a", instructions="Be kind.", model=model, tools=[weather])
            fields: dict[str, Any] = {"auto_previous_response_id": True} if chained else {}
            if not streamed:
                return await agents.Runner.run(agent, CITY, **fields)
            result = agents.Runner.run_streamed(agent, CITY, **fields)
            seen = [event.type async for event in result.stream_events()]
            assert "raw_response_event" in seen
            return result

    result = asyncio.run(run())
    assert result.final_output == "Done."
    assert len(result.raw_responses) == 2
    assert "4 degrees in Oslo[of call_" in at.prompt
    assert at.prompt.startswith("<system>Be kind.\n")
    kinds = [item["type"] for item in result.to_input_list() if "type" in item]
    assert kinds == ["reasoning", "function_call", "function_call_output", "message"]


@tool("weather")
def weather_tool(city: str) -> str:
    """The weather in a city."""
    return f"4 degrees in {city}"


@pytest.mark.parametrize("streaming", [False, True])
def test_langchain(at: Saying, streaming: bool) -> None:
    with httpx.Client() as http:
        chat = ChatOpenAI(
            model="scripted",
            base_url=f"{at.server.url}/v1",
            api_key=SecretStr("none"),
            use_responses_api=True,
            output_version="responses/v1",
            streaming=streaming,
            max_retries=0,
            http_client=http,
        )
        plain = chat.invoke(say(*THOUGHT, *"Hello"))
        assert plain.text == "Hello"
        assert isinstance(plain, AIMessage)
        assert plain.usage_metadata
        assert plain.usage_metadata["output_token_details"]["reasoning"] == len(THOUGHT)
        able = chat.bind_tools([weather_tool])
        history: list[Any] = [HumanMessage(CITY)]
        history.append(able.invoke(history))
        [made] = history[-1].tool_calls
        assert (made["name"], made["args"]) == ("weather", {"city": "Oslo"})
        history.append(ToolMessage(weather_tool.invoke(made["args"]), tool_call_id=made["id"]))
        assert able.invoke(history).text == "Done."
        structured = chat.with_structured_output(Answer)
        said = say(*json.dumps({"city": "Oslo", "days": 2}))
        assert structured.invoke(said) == Answer(city="Oslo", days=2)
