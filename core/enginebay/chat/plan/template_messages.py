"""Adapts a request's messages to what its chat template supports.

What a template handles itself is left to it. What it would reject or drop, as found by probing it
(`models/template/features`), is rewritten, and a note says how:

- `developer` becomes `system` where the template does not support it.
- System messages become user messages where the template takes none, or none at that position; they
  join an adjacent user message if the template wants alternating roles. Several leading ones are
  joined where the template takes only one.
- Results of tools come in the order of the calls they answer, with the function's name; where the
  template takes none, they become user messages.
- Several calls of one message become messages with one call each, where the template takes one.
- Arguments that are not a JSON object stay text, or are wrapped in an object.
- Call ids are shortened for templates that insist on nine characters.
- Neighboring messages of one role are joined where the template wants alternating roles, and a user
  message is put in front of an opening assistant message, unless the request forbids both.
"""

import hashlib
import json
import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from enginebay.chat.plan.content_parts import Content, content_and_thought
from enginebay.chat.plan.media_marks import Mark, Written
from enginebay.chat.plan.media_parts import picture_list
from enginebay.chat.schemas.messages import Message
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.probe_messages import reasoning

logger = logging.getLogger(__name__)

TemplateMessage = dict[str, Any]

_LOGGED = 10  # notes of one request; there may be one for each of its calls


@dataclass(frozen=True, slots=True)
class TemplateMessages:
    """The messages for the template, and notes on what was changed.

    `changed`: the paths of roles in the request that the template does not get as they were sent.
    """

    messages: list[TemplateMessage]
    notes: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def template_messages(
    messages: Sequence[Message],
    features: TemplateFeatures,
    *,
    content_format: str = "auto",
    media: Mapping[str, Written] | None = None,
    strict_roles: bool = False,
) -> TemplateMessages:
    """`messages` for this template: without null fields, arguments of calls as objects.

    `content_format`: `string`, `openai` (a list of parts), or `auto`, what the template reads.
    `media`: how the items of the messages are written, by their paths. `strict_roles`: leave
    messages of users and the assistant as they are.
    """
    wanted = features.content_format if content_format == "auto" else content_format
    result = TemplateMessages([])
    for position, message in enumerate(messages):
        content, thought = content_and_thought(message, f"messages[{position}]", media or {})
        made = _content(content, wanted)
        result.messages.append(
            _template_message(position, message, made, thought, features, result.notes)
        )
    _place_systems(result, features)
    place_tool_results(result.messages)
    if any("tool_calls" in message for message in result.messages):
        if not features.takes_any_call_id:
            _shorten_call_ids(result)
        if features.arguments_format is None:
            result.notes.append(
                "earlier tool calls are left out: the chat template does not support them"
            )
        elif not features.takes_several_calls:
            _separate_calls(result)
    results = [i for i, message in enumerate(result.messages) if message["role"] == "tool"]
    if results and not features.knows_tool_results:
        result.notes.append(
            "tool results are sent as user messages: the chat template does not support them"
        )
        _as_users(result.messages, results, join=not features.takes_users_in_a_row)
    if not strict_roles:
        _alternate(result, features, [message.role for message in messages])
    return result


def _template_message(
    position: int,
    message: Message,
    content: Any,
    thought: str,
    features: TemplateFeatures,
    notes: list[str],
) -> TemplateMessage:
    param = f"messages[{position}]"
    read = {"content", "images"} if picture_list(message) else {"content"}
    fields = message.model_dump(exclude_none=True, exclude=read)
    if message.role == "developer" and not features.knows_developer:
        fields["role"] = "system"
        notes.append(
            f"{param}: developer is sent as system: the chat template does not support developer"
        )
    calls = fields.pop("tool_calls", None)
    if message.role != "assistant":
        calls = None
    if calls:
        calls = [_read_by(features.template.keys, call) for call in calls]
        fields["tool_calls"] = calls
    thought = (message.reasoning_content or "") + thought
    fields |= reasoning(thought) if thought else {}
    if content or not calls or features.content_of_calls == "empty":
        fields["content"] = content
    elif features.content_of_calls == "null":
        fields["content"] = None
    for number, call in enumerate(calls or ()):
        function = call["function"]
        where = f"{param}.tool_calls[{number}].function.arguments"
        function["arguments"] = _arguments(function["arguments"], features, where, notes)
    return fields


def _content(content: Sequence[Content], wanted: str) -> Any:
    """A text, or a list of parts. Texts are joined without anything between, but for media."""
    texts = [each for each in content if isinstance(each, str)]
    if len(texts) < len(content) or (wanted == "openai" and texts):
        if any(isinstance(each, Mark) for each in texts):
            return [{"type": "text", "text": _with_marks(texts)}]
        return [{"type": "text", "text": c} if isinstance(c, str) else c for c in content]
    return _with_marks(texts)


def _with_marks(texts: Sequence[str]) -> str:
    """The texts joined, those that stand for media on lines of their own."""
    joined = ""
    for before, text in pairwise(("", *texts)):
        borders = isinstance(before, Mark) or isinstance(text, Mark)
        if borders and joined and not joined.endswith("\n") and not text.startswith("\n"):
            joined += "\n"
        joined += text
    return joined


def _read_by(keys: Collection[str], call: dict[str, Any]) -> dict[str, Any]:
    """A call without unknown keys that the template does not name: some write all of a call."""
    function = {
        k: v for k, v in call["function"].items() if k in ("name", "arguments") or k in keys
    }
    kept = {k: v for k, v in call.items() if k in ("id", "type") or k in keys}
    return {**kept, "function": function}


def _arguments(arguments: str, features: TemplateFeatures, param: str, notes: list[str]) -> Any:
    """A call's arguments as the template reads them; anything but a JSON object stays text."""
    if features.arguments_format == "string":
        return arguments
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        parsed = arguments
    if parsed is None:
        return {}
    if isinstance(parsed, dict):
        return parsed
    note = "not a JSON object, so it stays text"
    if not features.takes_text_arguments:
        note = "not a JSON object, which the chat template needs, so it is wrapped in one"
    notes.append(f"{param}: {note}")
    if len(notes) <= _LOGGED:
        logger.warning("%s: %s", param, note)
    return arguments if features.takes_text_arguments else {"arguments": arguments}


def _place_systems(result: TemplateMessages, features: TemplateFeatures) -> None:
    messages = result.messages
    systems = [i for i, message in enumerate(messages) if message["role"] == "system"]
    in_front = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    later = [i for i in systems if i >= in_front]
    if systems and not features.knows_system:
        result.notes.append(
            "system messages are sent as user messages: the chat template does not support them"
        )
        _as_users(messages, systems, join=True)
        return
    if later and not features.takes_later_systems:
        result.notes.append(
            "later system messages are sent as user messages: the chat template takes "
            "them only at the start"
        )
        _as_users(messages, later, join=not features.takes_users_in_a_row)
    if in_front > 1 and not features.takes_several_systems:
        result.notes.append("leading system messages are joined: the chat template takes only one")
        messages[:in_front] = [_joined(messages[:in_front])]


def _as_users(messages: list[TemplateMessage], positions: Collection[int], *, join: bool) -> None:
    """Turn these into user messages; `join`: merge them with adjacent user messages."""
    converted = set(positions)
    groups: list[list[TemplateMessage]] = []
    joins = False  # whether a user message may join the last group
    for i, message in enumerate(messages):
        if i in converted:
            message = {**message, "role": "user"}
        users = bool(groups) and message["role"] == "user" == groups[-1][-1]["role"]
        if join and users and (i in converted or joins):
            groups[-1].append(message)
            joins = True
            continue
        groups.append([message])
        joins = i in converted
    messages[:] = [group[0] if len(group) == 1 else _joined(group) for group in groups]


def _alternate(result: TemplateMessages, features: TemplateFeatures, roles: Sequence[str]) -> None:
    """Make roles alternate where the template wants that. `roles`: those of the request."""
    messages = result.messages
    opening = next((i for i, m in enumerate(messages) if m["role"] != "system"), None)
    opens = opening is not None and messages[opening]["role"] == "assistant"
    if opens and opening is not None and not features.takes_opening_assistant:
        messages.insert(opening, dict(features.opening_user))
        first = next(i for i, role in enumerate(roles) if role == "assistant")
        result.changed.append(f"messages[{first}].role")
        result.notes.append(
            "a user message is put in front of the first assistant message: the chat template "
            "wants the user to begin"
        )
    taken = {"user": "takes_users_in_a_row", "assistant": "takes_assistants_in_a_row"}
    for role, feature in taken.items():
        groups: list[list[TemplateMessage]] = []
        for message in messages:
            before = groups[-1][-1] if groups else {"role": None}
            same = message["role"] == before["role"] == role
            # Text that follows calls is not what the calls followed.
            if same and not before.get("tool_calls") and not getattr(features, feature):
                groups[-1].append(message)
            else:
                groups.append([message])
        if len(groups) == len(messages):
            continue
        messages[:] = [group[0] if len(group) == 1 else _joined(group) for group in groups]
        pairs = enumerate(pairwise(roles), 1)
        result.changed.extend(f"messages[{i}].role" for i, pair in pairs if pair == (role, role))
        result.notes.append(
            f"neighboring {role} messages are joined: the chat template wants alternating roles"
        )


def _joined(messages: Sequence[TemplateMessage]) -> TemplateMessage:
    """One message: texts and reasoning behind each other, and the calls of the last message."""
    calls = messages[-1].get("tool_calls")
    joined = {**messages[0], **({"tool_calls": calls} if calls else {})}
    if len({message.get("name") for message in messages}) > 1:
        joined.pop("name", None)
    thoughts = [thought for m in messages if (thought := m.get("reasoning_content"))]
    joined |= reasoning("\n\n".join(thoughts)) if thoughts else {}
    contents = [content for message in messages if (content := message.get("content"))]
    if not contents:
        return joined
    if all(isinstance(content, str) for content in contents):
        return {**joined, "content": "\n\n".join(contents)}
    parts = _parts(contents[0])
    for content in contents[1:]:
        parts += [{"type": "text", "text": "\n\n"}, *_parts(content)]
    return {**joined, "content": parts}


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def place_tool_results(messages: list[TemplateMessage]) -> None:
    """Results in the order of their calls, each with the id and the name of its call."""
    for at, message in enumerate(messages):
        calls = message.get("tool_calls") or []
        for number, call in enumerate(calls):
            call.setdefault("id", f"call_{at}_{number}")
        names = {call["id"]: call["function"]["name"] for call in calls}
        if not names:
            continue
        end = at + 1
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results = messages[at + 1 : end]
        answered = {result.get("tool_call_id") for result in results}
        unanswered = deque(id for id in names if id not in answered)
        for result in results:
            if "tool_call_id" not in result and unanswered:
                result["tool_call_id"] = unanswered.popleft()
            if name := names.get(result.get("tool_call_id", "")):
                result.setdefault("name", name)
        order = {id: number for number, id in enumerate(names)}
        if all(result.get("tool_call_id") in order for result in results):
            messages[at + 1 : end] = sorted(results, key=lambda r: order[r["tool_call_id"]])


def _separate_calls(result: TemplateMessages) -> None:
    """One message per call, each followed by its results."""
    messages: list[TemplateMessage] = []
    waiting: deque[TemplateMessage] = deque()  # messages of further calls

    def take_waiting(before: Any = None) -> None:
        while waiting and (before is None or waiting[0]["tool_calls"][0]["id"] == before):
            messages.append(waiting.popleft())

    for message in result.messages:
        if message["role"] == "tool" and "tool_call_id" in message:
            take_waiting(message["tool_call_id"])
        else:
            take_waiting()
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            messages.append(message)
            continue
        messages.append({**message, "tool_calls": calls[:1]})
        more: TemplateMessage = {"role": message["role"]}
        if "content" in message:
            more["content"] = message["content"] and ""
        waiting += [{**more, "tool_calls": [call]} for call in calls[1:]]
        result.notes.append(
            "tool calls are split into messages: the chat template takes one per message"
        )
    take_waiting()
    result.messages[:] = messages


def _shorten_call_ids(result: TemplateMessages) -> None:
    """Ids of nine letters and digits, the same for a call and its result."""
    changed = False
    for message in result.messages:
        calls = message.get("tool_calls", ())
        named = [(call, "id") for call in calls] + [(message, "tool_call_id")]
        for owner, key in named:
            id = owner.get(key)
            if isinstance(id, str) and not (len(id) == 9 and id.isascii() and id.isalnum()):
                owner[key] = hashlib.sha256(id.encode(errors="replace")).hexdigest()[:9]
                changed = True
    if changed:
        result.notes.append("call ids are shortened: the chat template requires nine characters")
