"""What a sentence-transformers folder says (`modules.json` and what it names), without the library.

The format is that of sentence-transformers 6, which reads all older ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from enginebay_checkpoint.folder import Checkpoint

_TRANSFORMER_CONFIGS = (
    "sentence_bert_config.json",
    *(
        f"sentence_{name}_config.json"
        for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
_OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class Dense:
    """A linear layer behind the pooling; `path` is its folder in the model's."""

    path: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Normalize:
    """The embedding is scaled to length 1."""


@dataclass(frozen=True, slots=True)
class LogitScore:
    """A score from the logits of one or two tokens at the end of a prompt."""

    true_token_id: int
    false_token_id: int | None


@dataclass(frozen=True, slots=True)
class Messages:
    """Each text is a message, whose content may be a list of parts; variables of the template."""

    structured: bool
    variables: Mapping[str, Any]

    def of(self, texts: Mapping[str, str]) -> list[dict[str, Any]]:
        """Messages with these texts, by their role."""
        return [
            {"role": role, "content": [{"type": "text", "text": text}] if self.structured else text}
            for role, text in texts.items()
        ]


@dataclass(frozen=True, kw_only=True)
class SentenceFolder:
    """What comes behind the transformer in the subfolder `transformer`, and what goes before it.

    `modes`: poolings of the tokens, which are joined; none in a folder that does not pool.
    `length`: tokens of the longest text, if the folder says. `messages`: how texts are put into the
    tokenizer's chat template, None if they are not.
    """

    transformer: str = ""
    modes: tuple[str, ...] = ()
    steps: tuple[Dense | Normalize, ...] = ()
    logit_score: LogitScore | None = None
    length: int | None = None
    lower_case: bool = False
    messages: Messages | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    activation: str | None = None

    @property
    def prompt(self) -> str:
        """The text of the default prompt."""
        return self.prompts[self.default_prompt] if self.default_prompt else ""


def read_sentence_folder(checkpoint: Checkpoint) -> SentenceFolder | None:
    """None for a folder that says nothing; raises for modules that are not supported."""
    try:
        return _read_folder(checkpoint)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise checkpoint.unavailable(
            f"its sentence-transformers files say something unexpected ({error!r}); download "
            "them again"
        ) from error


def _read_folder(checkpoint: Checkpoint) -> SentenceFolder | None:
    more = _read(checkpoint, "config_sentence_transformers.json")
    prompts = dict(more.get("prompts") or {})
    default = more.get("default_prompt_name")
    found: dict[str, Any] = {
        "prompts": prompts,
        "default_prompt": default if default in prompts else None,
        "activation": more.get("activation_fn"),
    }
    if not (checkpoint.path / "modules.json").is_file():
        pooling = _read(checkpoint, "1_Pooling/config.json")
        if not pooling:
            return None
        return SentenceFolder(modes=_modes(checkpoint, pooling, prompts), **found)
    steps: list[Dense | Normalize] = []
    for module in checkpoint.read_json_objects("modules.json"):
        path, kind = str(module.get("path") or ""), str(module.get("type"))
        checkpoint.require_inside(path)
        config = _read(checkpoint, _join(path, "config.json")) if path else {}
        match kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind:
            case "Transformer":
                found |= {"transformer": path, **_transformer(checkpoint, path)}
            case "Pooling":
                found["modes"] = _modes(checkpoint, config, prompts)
            case "Dense":
                _check_dense(checkpoint, path, config)
                steps.append(Dense(path, config))
            case "Normalize":
                steps.append(Normalize())
            case "LogitScore":
                found["logit_score"] = LogitScore(
                    config["true_token_id"], config.get("false_token_id")
                )
            case "Dropout":
                pass  # in training
            case unknown:
                raise checkpoint.unavailable(
                    f"its module {unknown} (modules.json) is not supported; supported are "
                    "Transformer, Pooling, Dense, Normalize and LogitScore"
                )
    return SentenceFolder(steps=tuple(steps), **found)


def _transformer(checkpoint: Checkpoint, path: str) -> dict[str, Any]:
    configs = (_read(checkpoint, _join(path, name)) for name in _TRANSFORMER_CONFIGS)
    config = next(filter(None, configs), {})
    if config.get("query_expansion"):
        raise checkpoint.unavailable("query_expansion of its Transformer is not supported")
    return {
        "length": config.get("max_seq_length"),
        "lower_case": bool(config.get("do_lower_case")),
        "messages": _messages(config),
    }


def _messages(config: Mapping[str, Any]) -> Messages | None:
    message = config.get("modality_config", {}).get("message")
    if message is None:
        return None
    variables = dict(config.get("processing_kwargs", {}).get("chat_template", {}))
    variables.pop("restore_suffix", None)  # for texts that are cut
    return Messages(structured=message.get("format") == "structured", variables=variables)


def _modes(
    checkpoint: Checkpoint, config: Mapping[str, Any], prompts: Mapping[str, str]
) -> tuple[str, ...]:
    if any(prompts.values()) and not config.get("include_prompt", True):
        raise checkpoint.unavailable(
            "its Pooling leaves the prompt's tokens out (include_prompt: false), which is not "
            "supported"
        )
    named = config.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named
    if modes is None:
        modes = [mode for key, mode in _OLD_MODES.items() if config.get(key)] or ["mean"]
    if unknown := [mode for mode in modes if mode not in _MODES]:
        raise checkpoint.unavailable(f"its pooling_mode {unknown[0]!r} is not supported")
    return tuple(modes)


def _check_dense(checkpoint: Checkpoint, path: str, config: Mapping[str, Any]) -> None:
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise checkpoint.unavailable(f"{key} of its module {path} (Dense) is not supported")


def _read(checkpoint: Checkpoint, name: str) -> dict[str, Any]:
    return checkpoint.read_json(name) if (checkpoint.path / name).is_file() else {}


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
