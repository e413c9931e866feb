"""A conversation in the terminal: history, commands, streamed output."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2

from enginebay.cli.client import ApiError, body_of, events_of
from enginebay.cli.console import stderr, stdout
from enginebay.cli.pictures import picture_part, require_sight
from enginebay.contract.errors import InvalidRequestError

if TYPE_CHECKING:
    from rich.console import Console

HELP = """\
/image FILE    send a picture with the next message
/system TEXT   set the system message (without TEXT: none)
/reset         forget the conversation
/help          this
/exit quit; Ctrl-D does too
Ctrl-C stops an answer."""

CONTINUED_TOKENS = 256
"""The length of a continuation: a base model seldom ends its text by itself."""

UNPRINTABLE = {code: "�" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}
"""Control characters: from a model to a terminal they would be commands."""


class Conversation:
    """Messages so far, and the model that answers them.

    `continues_text`: the model has no chat template, so it continues the messages as one text.
    """

    def __init__(
        self,
        client: httpx2.Client,
        model: str,
        system: str | None = None,
        *,
        stream: bool = True,
        tools: Any = None,
        continues_text: bool = False,
    ) -> None:
        self.model = model
        self.system = system
        self.continues_text = continues_text
        self._options: dict[str, Any] = {"tools": tools} if tools else {}
        if stream:
            self._options |= {"stream": True, "stream_options": {"include_usage": True}}
        self.messages: list[dict[str, Any]] = []
        self._pictures: list[dict[str, Any]] = []
        self._client = client

    def add_picture(self, path: Path) -> None:
        """Send a picture with the next message.

        `InvalidRequestError` if the model takes none, as far as the server says, or it is none.
        """
        if self.continues_text:
            raise InvalidRequestError("a model without a chat template accepts text only")
        require_sight(self._client, self.model)
        self._pictures.append(picture_part(path))

    def reset(self) -> None:
        """Forget the messages, and pictures that are to go with the next one."""
        self.messages.clear()
        self._pictures.clear()

    def ask(self, text: str) -> bool:
        """Send a message and print the answer; False when Ctrl-C stopped it.

        The answer, or what there was of it, becomes part of the history. On an error, which is
        raised, the history stays as it was, and pictures go with the next message.
        """
        system = [{"role": "system", "content": self.system}] if self.system else []
        texts = [{"type": "text", "text": text}] if text else []
        content = [*self._pictures, *texts] if self._pictures else text
        question = {"role": "user", "content": content}
        messages: Any = [*system, *self.messages, question]
        printer = Printer()
        complete = True
        try:
            self._answer(messages, printer)
        except KeyboardInterrupt:
            complete = False
        finally:
            printer.finish(complete)
        self._pictures.clear()
        self.messages += [question, {"role": "assistant", "content": printer.content}]
        return complete

    def _answer(self, messages: Any, printer: Printer) -> None:
        path = "/v1/chat/completions"
        body: dict[str, Any] = {"messages": messages}
        if self.continues_text:
            path = "/v1/completions"
            text = "\n".join(message["content"] for message in messages)
            body = {"prompt": text, "max_tokens": CONTINUED_TOKENS}
        body |= {"model": self.model, **self._options}
        if "stream" not in self._options:
            printer.show(body_of(self._client.post(path, json=body)))
            return
        with self._client.stream("POST", path, json=body) as response:
            for chunk in events_of(response):
                printer.show(chunk)


class Printer:
    """Prints one answer: content to stdout, reasoning, tool calls and usage to stderr."""

    def __init__(self) -> None:
        self.content = ""
        self._out, self._err = stdout(), stderr()
        self._kind = ""
        self._usage: dict[str, Any] | None = None
        self._finish_reason = ""

    def show(self, chunk: dict[str, Any]) -> None:
        """Print a chunk, or a complete answer."""
        self._usage = chunk.get("usage") or self._usage
        for choice in chunk["choices"]:
            self._finish_reason = choice.get("finish_reason") or self._finish_reason
            if (text := choice.get("text")) is not None:  # of a completion
                self.content += text
                self._write(self._out, "content", text, None)
                continue
            delta = choice["delta"] if "delta" in choice else choice["message"]
            if reasoning := delta.get("reasoning_content"):
                self._write(self._err, "reasoning", reasoning, "dim")
            if refusal := delta.get("refusal"):
                self._write(self._err, "refusal", refusal, "yellow")
            if content := delta.get("content"):
                self.content += content
                self._write(self._out, "content", content, None)
            for index, call in enumerate(delta.get("tool_calls") or ()):
                name, arguments = (call["function"].get(key) for key in ("name", "arguments"))
                text = f"{name} " if name else ""
                text += arguments or ""
                self._write(self._err, f"tool call {call.get('index', index)}", text, "cyan")

    def finish(self, complete: bool) -> None:
        """End the last line; print the finish reason, usage and speed."""
        if self._kind:
            (self._out if self._kind == "content" else self._err).print()
        notes = [] if complete else ["stopped"]
        if self._finish_reason == "length":
            notes.append("cut off: max_tokens or the end of the context")
        if self._usage:
            notes.append(f"prompt {self._usage['prompt_tokens']} tokens")
            notes.append(f"answer {self._usage['completion_tokens']} tokens")
        if notes:
            self._err.print(", ".join(notes), style="dim")

    def _write(self, console: Console, kind: str, text: str, style: str | None) -> None:
        if kind != self._kind:
            if self._kind:
                (self._out if self._kind == "content" else self._err).print()
            if kind.startswith("tool"):
                self._err.print("tool call: ", end="", style="dim")
            self._kind = kind
        if console.is_terminal:
            text = text.translate(UNPRINTABLE)
        console.out(text, end="", style=style, highlight=False)


def loop(conversation: Conversation) -> None:
    """Read messages and commands until `/exit` or Ctrl-D."""
    with suppress(ImportError):  # Windows has its own
        import readline  # noqa: F401  (gives input() a history and line editing)
    notes = stderr()
    notes.print(f"{conversation.model}; /help lists commands, Ctrl-D quits", style="dim")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            notes.print()
            return
        except KeyboardInterrupt:
            notes.print("\nCtrl-D or /exit quits", style="dim")
            continue
        if line == "/exit":
            return
        if line.startswith("/"):
            notes.print(_command(conversation, line), style="dim")
        elif line:
            _answer(conversation, line, notes)


def _answer(conversation: Conversation, text: str, notes: Console) -> None:
    try:
        conversation.ask(text)
    except (ApiError, httpx2.TransportError) as error:
        notes.print(_words_for(error), style="red")


def _words_for(error: ApiError | httpx2.TransportError) -> str:
    if isinstance(error, httpx2.TransportError):
        return "the server is not responding; try again when it is running"
    return str(error)


def _command(conversation: Conversation, line: str) -> str:
    command, _, rest = line.partition(" ")
    match command:
        case "/image":
            return _add_picture(conversation, rest.strip())
        case "/help":
            return HELP
        case "/reset":
            conversation.reset()
            return "conversation reset"
        case "/system":
            conversation.system = rest.strip() or None
            return f"system message: {conversation.system or 'none'}"
    return f"unknown command {command}; /help lists the commands"


def _add_picture(conversation: Conversation, file: str) -> str:
    if not file:
        return "/image needs the name of a file"
    try:
        conversation.add_picture(Path(file).expanduser())
    except InvalidRequestError as error:
        return error.message
    except (ApiError, httpx2.TransportError) as error:
        return _words_for(error)
    return f"{file} goes with the next message"
