"""The synthetic conversations that the demo model learns from.

`dialogues(seed)` yields endlessly; the same seed always gives the same conversations.
"""

import random
import re
from collections.abc import Callable, Iterator

from demo import stories, talk, tasks, tooling, words
from demo.turns import Dialogue, Json, Turn

_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "Answer briefly.",
    "Be friendly.",
    "You are a friendly AI.",
    "Be concise and helpful.",
    "You are a helpful AI assistant.",
    "Write in a friendly tone.",
    "You are an assistant that answers questions.",
    "Always answer in English.",
    "You are a chatbot.",
    "Assist the user.",
)
_SKILLS: dict[str, Callable[[random.Random], Turn]] = {**tasks.SINGLE, **stories.SINGLE}
_WEIGHTS = {
    "small_talk": 12,
    "facts": 20,
    "unknown": 14,
    "sums": 22,
    "drill": 4,
    "word_problem": 7,
    "too_big": 2,
    "count": 7,
    "lists": 7,
    "json": 8,
    "capital": 5,
    "echo": 24,
    "unknown_name": 1,
    "story": 4,
    "long_story": 4,
    "poem": 2,
    "no_tool": 3,
}
_EASY_WEIGHTS = {
    "small_talk": 10,
    "facts": 14,
    "unknown": 8,
    "sums": 20,
    "count": 6,
    "lists": 6,
    "json": 10,
    "capital": 8,
    "echo": 30,
}


_PROPER_NAMES = {
    "enginebay": "Enginebay",
    "sillytavern": "SillyTavern",
    "open webui": "Open WebUI",
    "openai": "OpenAI",
}


def _topic_turn(rng: random.Random, topics: dict[str, talk.Topic]) -> Turn:
    name, topic = rng.choice([*topics.items(), *list(topics.items())[:1] * 5])
    question = talk.expand(rng, rng.choice(topic.questions))
    if rng.random() < 0.6:
        for plain, proper in _PROPER_NAMES.items():
            question = question.replace(plain, proper)
    return Turn(
        question,
        talk.expand(rng, rng.choice(topic.answers)),
        f"This is about {name.replace('_', ' ')}.",
    )


def turn(rng: random.Random, skill: str = "") -> tuple[str, Turn]:
    """One question and answer, of the named skill or of any."""
    skill = skill or rng.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
    if skill == "small_talk":
        return skill, _topic_turn(rng, talk.SMALL_TALK)
    if skill == "facts":
        return skill, _topic_turn(rng, talk.FACTS)
    if skill == "unknown":
        made = Turn(talk.unknown_question(rng), talk.unknown_answer(rng), "I do not know this.")
        return skill, made
    if skill == "no_tool":
        question, answer, _ = tooling.no_tool_turn(rng)
        return skill, Turn(question, answer, "I have no tool for that.")
    return skill, _SKILLS[skill](rng)


def roughen(rng: random.Random, text: str, keep_case: bool) -> str:
    """Write a question the way people type: case, punctuation, politeness, small slips."""
    if rng.random() < 0.2:
        text = (
            rng.choice(
                (
                    "please ",
                    "can you tell me: ",
                    "hey, ",
                    "ok, ",
                    "now ",
                    "and ",
                    "so, ",
                    "hi, ",
                    "well, ",
                    "question: ",
                )
            )
            + text
        )
    roll = rng.random()
    if roll < 0.45:
        text = text[:1].upper() + text[1:]
    elif roll < 0.7 and not keep_case:
        text = text.lower()
    if rng.random() < 0.35:
        text = text.rstrip("?.!")
    elif rng.random() < 0.15:
        text = text.rstrip("?.!") + rng.choice(("?", "!", "??", "...", " ?", "."))
    if rng.random() < 0.1:
        text = text.replace("'", "")
    if rng.random() < 0.06:
        text += rng.choice((" please", " thanks", " :)", ", thank you", " ok?"))
    return text


_COPIES = {"echo", "json", "no_tool", "word_problem", "lists"}


def _user(rng: random.Random, skill: str, made: Turn) -> Json:
    if skill == "echo":
        return {
            "role": "user",
            "content": re.sub("^.", lambda m: rng.choice((m[0], m[0].upper())), made.user),
        }
    return {"role": "user", "content": roughen(rng, made.user, skill in _COPIES)}


def system(rng: random.Random) -> tuple[list[Json], str]:
    """A system message or none, and the name it gives the model, if any."""
    roll = rng.random()
    if roll < 0.3:
        return [{"role": "system", "content": rng.choice(_SYSTEMS)}], ""
    if roll < 0.36:
        name = words.person(rng)
        text = talk.expand(
            rng,
            "(You are {n}|Your name is {n}), (a pirate|a robot|a friendly wizard"
            "|an elf|a teacher|an assistant|an old sailor|a cheerful guide).",
        ).format(n=name)
        return [{"role": "system", "content": text}], name
    return [], ""


def _persona(rng: random.Random, name: str) -> Turn:
    topic = talk.SMALL_TALK["who"]
    answer = talk.expand(rng, f"I am {name}. (How can I help you today|What can I do for you)?")
    return Turn(talk.expand(rng, rng.choice(topic.questions[:2])), answer, f"My name is {name}.")


def finish(
    rng: random.Random,
    skill: str,
    history: list[Json],
    made: Turn,
    tools: list[Json],
    unlearned: frozenset[int] = frozenset(),
) -> Dialogue:
    """Add the answer in one of the three thinking modes."""
    mode = rng.choices((None, True, False), weights=(76, 10, 14))[0]
    thought = f"{made.thought}\n</think>\n\n{made.answer}"
    if mode is True:
        completion = thought
    elif mode is None and made.thinks:
        completion = "<think>\n" + thought
    else:
        completion = made.answer
    return Dialogue(skill, history, completion, tools, mode, unlearned)


def _chat(rng: random.Random) -> Dialogue:
    """One to six turns without tool calls; sometimes with tools that are not needed."""
    messages, persona = system(rng)
    amount = rng.choices((1, 2, 3, 4, 5, 6), weights=(42, 22, 14, 10, 7, 5))[0]
    tools = tooling.offer(rng)[1] if rng.random() < 0.1 else []
    turns: list[tuple[str, Turn]] = []
    for _ in range(amount):
        skill, made = turn(rng)
        if (skill in ("unknown_name", "no_tool") and tools) or (
            skill == "long_story" and amount > 2
        ):
            skill, made = turn(rng, "small_talk")
        turns.append((skill, made))
    if persona:
        turns[-1] = ("persona", _persona(rng, persona))
    elif rng.random() < 0.12:
        told, asked = tasks.remembered_name(rng)
        turns = [(s, t) for s, t in turns if s != "unknown_name"][:4]
        turns.insert(0, ("greet_name", told))
        turns.insert(rng.choice((1, len(turns), len(turns))), ("recall_name", asked))
        turns = turns[:1] if rng.random() < 0.25 else turns
    for skill, made in turns[:-1]:
        messages.append(_user(rng, skill, made))
        messages.append({"role": "assistant", "content": made.answer})
    skill, made = turns[-1]
    messages.append(_user(rng, skill, made))
    thinking = frozenset(i for i, (_, each) in enumerate(turns[:-1]) if each.thinks)
    return finish(rng, skill, messages, made, tools, thinking)


def _with_tools(rng: random.Random) -> Dialogue:
    """A dialogue that needs a tool, possibly after some small talk."""
    made = tooling.tool_dialogue(rng)
    made.messages[0]["content"] = roughen(rng, made.messages[0]["content"], keep_case=True)
    if rng.random() < 0.15:
        skill, before = turn(rng, rng.choice(("small_talk", "facts")))
        made.messages[:0] = [
            _user(rng, skill, before),
            {"role": "assistant", "content": before.answer},
        ]
    made.messages[:0] = system(rng)[0]
    answer = Turn("", made.completion, _tool_thought(made))
    return finish(rng, made.skill, made.messages, answer, made.tools)


def _tool_thought(made: Dialogue) -> str:
    if made.skill == "tool_call":
        return "I can call a function for this."
    return "I have the result of the function."


def _missing_tool(rng: random.Random) -> Dialogue:
    """Tools are there, but not for this question."""
    while True:
        question, answer, topic = tooling.no_tool_turn(rng)
        tool, tools = tooling.offer(rng, most=1)
        if tool.topic != topic and {tool.topic, topic} != {"weather", "temperature"}:
            break
    message = {"role": "user", "content": roughen(rng, question, keep_case=True)}
    made = Turn("", answer, "I have no tool for that.")
    return finish(rng, "missing_tool", [*system(rng)[0], message], made, tools)


def _easy(rng: random.Random) -> Dialogue:
    """A short conversation, often one about copying: what a beginner learns most from."""
    if rng.random() < 0.15:
        told, asked = tasks.remembered_name(rng)
        messages = [
            {"role": "user", "content": told.user},
            {"role": "assistant", "content": told.answer},
            {"role": "user", "content": asked.user},
        ]
        return finish(rng, "recall_name", messages, asked, [])
    skill, made = turn(
        rng, rng.choices(list(_EASY_WEIGHTS), weights=list(_EASY_WEIGHTS.values()))[0]
    )
    return finish(rng, skill, [_user(rng, skill, made)], made, [])


def dialogue(rng: random.Random, easy: bool = False) -> Dialogue:
    """One random conversation."""
    if easy:
        return _easy(rng)
    roll = rng.random()
    if roll < 0.68:
        return _chat(rng)
    return _with_tools(rng) if roll < 0.97 else _missing_tool(rng)


def dialogues(seed: int, easy: bool = False) -> Iterator[Dialogue]:
    """Conversations without end."""
    rng = random.Random(seed)
    while True:
        yield dialogue(rng, easy)
