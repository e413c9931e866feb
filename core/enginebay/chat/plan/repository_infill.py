"""Filling in the middle of one file of several, with the prompt that llama-server builds.

The files come first: behind the tokens that Qwen 2.5 Coder has for a repository and its files
(https://arxiv.org/abs/2409.12186), or else as snippets of plain text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from enginebay.chat.plan.infill import infill_format
from enginebay.chat.plan.prompt_tokens import tokenize_text
from enginebay.chat.plan.uncut_tokens import uncut_plain_tokens, uncut_tokens
from enginebay.models.served import ServedModel

_REPOSITORY = ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>")
_FILE = ("<|file_sep|>",)
_PROJECT, _FILENAME = "myproject\n", "filename\n"
"""What llama-server calls the project and the file that is filled in."""

_SNIPPET = "\n\n--- snippet ---\n\n"
_MARKS = 4  # a BOS and three tokens of the format


@dataclass(frozen=True, slots=True)
class SourceFile:
    """Another file that the model should know of."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A gap in a file: what is around it, what of it is `written`, and other `files`."""

    prefix: str
    suffix: str
    written: str = ""
    files: Sequence[SourceFile] = ()


@dataclass(frozen=True, slots=True)
class GapPrompt:
    """The tokens of a prompt, `cut` less than all, and those that say that another file begins."""

    token_ids: list[int]
    stop_token_ids: list[int]
    cut: int


async def gap_prompt(model: ServedModel, gap: Gap, answer: int | None) -> GapPrompt:
    """The prompt whose completion fills the gap; an error if the model has no tokens for it.

    What leaves no room for an answer of so many tokens, or a quarter of the context, is left out:
    files first, from the beginning, then what is farthest from the gap.
    """
    format, ids = await infill_format(model, param="input_suffix")
    length = model.info.context_length
    room = max(0, length - max(1, length // 4 if answer is None else answer) - _MARKS)
    written = await tokenize_text(model, gap.written, add_special_tokens=False, param="prompt")
    prefix = await _plain(model, gap.prefix, "input_prefix")
    suffix = await _plain(model, gap.suffix, "input_suffix")
    marks, files = await _files(model, gap.files)
    whole = len(prefix) + len(suffix) + len(files)
    room = max(0, room - len(written))
    suffix = suffix[: max(room // 4, room - len(prefix))]
    prefix = _last(prefix, room - len(suffix))
    files = _last(files, room - len(suffix) - len(prefix))
    parts = format.around([*prefix, *written], suffix, ids)
    cut = whole - len(prefix) - len(suffix) - len(files)
    # llama-server puts the BOS behind the files, too.
    return GapPrompt([*files, *model.formats.beginning.token_ids, *parts], marks, cut)


async def _files(model: ServedModel, files: Sequence[SourceFile]) -> tuple[list[int], list[int]]:
    """The tokens that begin a repository or a file, of those that there are; and all files."""
    repository = await _first_of(model, _REPOSITORY)
    separator = await _first_of(model, _FILE)
    token_ids: list[int] = []
    if repository is not None:
        token_ids += [repository, *await _plain(model, _PROJECT, "input_extra")]
    for at, file in enumerate(files):
        param = f"input_extra[{at}].text"
        if separator is not None:
            token_ids += [separator, *await _plain(model, f"{file.name}\n", param)]
        else:
            token_ids += await _plain(model, _SNIPPET, param)
        token_ids += await _plain(model, file.text, param)
    if separator is not None:
        token_ids += [separator, *await _plain(model, _FILENAME, "input_extra")]
    return [token for token in (repository, separator) if token is not None], token_ids


async def _first_of(model: ServedModel, texts: Sequence[str]) -> int | None:
    """The first of these that is a token."""
    for text in texts:
        found = await model.backend.tokenize(text, add_special_tokens=False)
        if len(found) == 1 and await model.backend.detokenize(found) == text:
            return found[0]
    return None


async def _plain(model: ServedModel, text: str, param: str) -> list[int]:
    """Tokens of a text in which nothing is special, where the engine can see to that."""
    token_ids = await uncut_plain_tokens(model, text, param, add_special_tokens=False)
    if token_ids is None:
        return await uncut_tokens(model, text, param, add_special_tokens=False)
    return token_ids


def _last(token_ids: list[int], most: int) -> list[int]:
    return token_ids[max(0, len(token_ids) - most) :]
