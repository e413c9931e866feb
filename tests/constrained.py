"""Models that must not fail, however little they know: one engine behind every tool format."""

import asyncio
import json
import shutil
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import torch
from jsonschema import Draft202012Validator
from safetensors.torch import load_file, save_file

from demo.to_gguf import convert
from enginebay import Backend, Delta, Engine, EngineBackend, GenerationRequest, ModelInfo
from enginebay.config.schema import Config
from enginebay_parsers import REASONING, TOOLS
from tests.support import DEMO_MODEL, Server, plugins_with, serve

MAX_TOKENS = 320
# At this temperature both models stammer. Thought is short, as the untrained one ends it by chance.
WILD: dict[str, Any] = {"temperature": 1.5, "max_tokens": MAX_TOKENS}
SHORT_THOUGHT = {"reasoning_budget": 8}

BOOKING: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 12},
        "nights": {"type": "integer", "minimum": 1, "maximum": 30},
        "room": {"enum": ["single", "double", "suite"]},
        "stars": {"type": "integer", "minimum": 1, "maximum": 5},
        "breakfast": {"type": "boolean"},
        "guests": {
            "type": "array",
            "items": {"$ref": "#/$defs/guest"},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["city", "nights", "room", "guests"],
    "additionalProperties": False,
    "$defs": {
        "guest": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 8},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
    },
}
NOTE: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 16}},
    "required": ["text"],
    "additionalProperties": False,
}
PING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"book_hotel": BOOKING, "take-note_2": NOTE, "ping": PING}


def tools(*, strict: bool = False) -> list[Any]:
    """The functions of `SCHEMAS` as tools of a request."""
    return [
        {
            "type": "function",
            "function": {"name": name, "parameters": schema} | ({"strict": True} if strict else {}),
        }
        for name, schema in SCHEMAS.items()
    ]


def make_untrained(folder: Path) -> Path:
    """The demo model with weights of noise."""
    shutil.copytree(DEMO_MODEL, folder)
    generator = torch.Generator().manual_seed(0)
    weights = load_file(folder / "model.safetensors")
    noise = {
        name: torch.randn(tensor.shape, generator=generator).mul_(0.05).to(tensor.dtype)
        if tensor.dim() > 1
        else tensor
        for name, tensor in weights.items()
    }
    save_file(noise, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_gguf(folder: Path, target: Path) -> Path:
    """The same model for llama.cpp."""
    convert(folder, target, "f16")
    return target


class Shared(Backend):
    """One backend under many names: started once, closed once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._info: asyncio.Task[ModelInfo] | None = None
        self._closed = False

    async def start(self) -> ModelInfo:
        if self._info is None:
            self._info = asyncio.create_task(self._backend.start())
        return await asyncio.shield(self._info)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        async with aclosing(self._backend.generate(request)) as deltas:
            async for delta in deltas:
                yield delta

    async def tokenize(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return await self._backend.tokenize(text, add_special_tokens=add_special_tokens)

    async def detokenize(self, token_ids: Sequence[int]) -> str:
        return await self._backend.detokenize(token_ids)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._backend.close()


@contextmanager
def serving_all_formats(create_engine: Callable[[], Engine]) -> Iterator[Server]:
    """A server with a model by the name of each tool format; all of them are the same one."""
    shared = Shared(EngineBackend(create_engine))
    # Where both have one name, calls have tags around them that the reasoning format drops.
    models = [
        {
            "name": name,
            "backend": "shared",
            "path": ".",
            "tools": name,
            "reasoning": name if name in REASONING else "think",
        }
        for name in TOOLS
    ]
    plugins = plugins_with(shared=lambda settings: shared)
    with serve(Config.model_validate({"models": models}), plugins) as running:
        yield running


async def answers(server: Server, model: str, seeds: int, **body: Any) -> list[Any]:
    """The choices of one conversation with so many seeds, eight to a request."""
    async with server.async_openai() as client:
        patient = client.with_options(timeout=None)  # many wait for their turn
        replies = await asyncio.gather(
            *(
                patient.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": "Book a room in Paris for Ann."}],
                    n=min(8, seeds - seed),
                    seed=seed,
                    **WILD,
                    **body,
                )
                for seed in range(0, seeds, 8)
            )
        )
    return [choice for reply in replies for choice in reply.choices]


def finished(choices: list[Any]) -> list[Any]:
    """Those that were not cut off, of which there are some."""
    whole = [choice for choice in choices if choice.finish_reason != "length"]
    assert len(whole) >= len(choices) / 4, f"{len(whole)} of {len(choices)} came to an end"
    return whole


def check_json(choice: Any, schema: dict[str, Any]) -> None:
    """The content is JSON that the schema allows."""
    Draft202012Validator(schema).validate(json.loads(choice.message.content))


def check_calls(choice: Any, names: Sequence[str]) -> None:
    """There are calls, of these functions, with arguments that their schemas allow; no text."""
    assert not (choice.message.content or "").strip(), choice
    check_arguments(choice, names)


def check_arguments(choice: Any, names: Sequence[str]) -> None:
    """There are calls of these functions, with arguments that their schemas allow."""
    assert choice.message.tool_calls, choice
    for call in choice.message.tool_calls:
        assert call.function.name in names, choice
        arguments = json.loads(call.function.arguments)
        Draft202012Validator(SCHEMAS[call.function.name]).validate(arguments)
