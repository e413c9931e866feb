"""The chat templates of a model, and which of them a request gets."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from enginebay.contract.errors import (
    BackendUnavailableError,
    InvalidRequestError,
    UnsupportedParameterError,
)
from enginebay.contract.types import ModelInfo
from enginebay.models.template.beginning import Beginning
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.foreign_templates import ForeignTemplate, ForeignTemplates
from enginebay.models.template.template import (
    TEMPLATES_FOLDER,
    Arguments,
    Built,
    ChatTemplate,
    Template,
    template_files,
    template_path,
)

DEFAULT = "default"
WITH_TOOLS = "tool_use"
USUAL_NAMES = (DEFAULT, WITH_TOOLS, "rag")
_SHOWN = 100  # characters of a name that is none


class ModelTemplates:
    """Chat templates by name. The rules follow transformers' `get_chat_template`.

    `tool_use` renders requests with tools if present, `default` everything else; others, such as
    `rag`, are for requests that name them. `foreign` renders those that are not Enginebay's.
    `beginning`: what the model's tokenizer puts in front of texts. `files`: the names of template
    files, which the config may use instead.
    """

    def __init__(
        self,
        templates: Mapping[str, TemplateFeatures],
        foreign: ForeignTemplates,
        special_tokens: Mapping[str, str],
        beginning: Beginning,
        files: Iterable[str] = (),
    ) -> None:
        self._templates = templates
        self._foreign = foreign
        self._special_tokens = special_tokens
        self._beginning = beginning
        self.files = tuple(files)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the templates."""
        return tuple(self._templates)

    def choose(
        self,
        *,
        with_tools: bool,
        asked: str | None = None,
        of_requests: ForeignTemplates | None = None,
    ) -> TemplateFeatures | None:
        """The template of a request; None if the model has none that fits.

        `asked`: the request's `chat_template`: a name or, with `of_requests`, Jinja.
        """
        if asked is not None:
            return self._templates.get(asked) or self._of_request(asked, of_requests)
        if with_tools and WITH_TOOLS in self._templates:
            return self._templates[WITH_TOOLS]
        return self._templates.get(DEFAULT)

    async def run(
        self,
        build: Callable[Arguments, Built],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Built:
        """What `build` returns, on a thread where it may render these templates."""
        return await self._foreign.run(build, *args, **kwargs)

    def end_processes(self) -> None:
        """Free the memory of the processes that render; the next prompt starts others."""
        self._foreign.end_processes()

    def _of_request(self, asked: str, templates: ForeignTemplates | None) -> TemplateFeatures:
        names = ", ".join(self._templates) or "none"
        if not is_source(asked):
            raise InvalidRequestError(
                f"there is no chat template {asked[:_SHOWN]!r}; the model's templates, usable by "
                f"name: {names}",
                param="chat_template",
            )
        if templates is None:
            raise UnsupportedParameterError(
                "this server does not accept chat templates in requests: set "
                "`server.allow_request_template: true` in its config to allow that; the "
                f"model's templates, usable by name: {names}",
                param="chat_template",
            )
        try:
            features = templates.compile(asked, self._special_tokens, self._beginning)
        except InvalidRequestError as error:
            error.param = "chat_template"
            raise
        own = (each for each in self._templates.values() if each.own)
        return next((each for each in own if each.template.source == asked), features)


def is_source(template: str) -> bool:
    """Whether a request's `chat_template` is Jinja, and not a name."""
    return "{{" in template or "{%" in template


def template_names(info: ModelInfo, base: Path) -> list[str]:
    """Names that `load_templates` knows: the model's own, then files in folders for templates."""
    own = [DEFAULT] if info.chat_template is not None else []
    return list(dict.fromkeys([*own, *info.chat_templates, *sorted(template_files(base))]))


def load_templates(
    info: ModelInfo,
    configured: str | None,
    base: Path,
    foreign: ForeignTemplates,
    beginning: Beginning,
) -> ModelTemplates:
    """A model's templates. `configured`: the config's `chat_template`, which takes precedence.

    A file, the name of one in `templates/`, or the name of one of the model's templates. Blocks.
    """
    own = dict(info.chat_templates)
    if info.chat_template is not None:
        own = {DEFAULT: info.chat_template, **own}
    sources, origins = own, {name: _own(name) for name in own}
    trusted = False
    if configured:
        if path := template_path(configured, base):
            sources = {DEFAULT: path.read_text(encoding="utf-8")}
            origins = {DEFAULT: path.name}
            trusted = path.parent == TEMPLATES_FOLDER
        elif configured in own:
            sources = {DEFAULT: own[configured]}
            origins = {DEFAULT: _own(configured)}
        else:
            names = f"; the model's own: {', '.join(own)}" if own else ""
            raise BackendUnavailableError(f"there is no chat template {configured!r}{names}")
    tokens = info.special_tokens

    def compiled(source: str, name: str) -> Template:
        if trusted:
            return ChatTemplate(source, tokens, name=name)
        return ForeignTemplate(foreign, source, tokens, name)

    templates = {
        name: TemplateFeatures(
            compiled(source, origins[name]), beginning, own=source in own.values()
        )
        for name, source in sources.items()
    }
    return ModelTemplates(templates, foreign, tokens, beginning, sorted(template_files(base)))


def _own(name: str) -> str:
    return "the model's" if name == DEFAULT else f"the model's {name!r}"
