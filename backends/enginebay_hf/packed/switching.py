"""Which attention function a model calls: transformers' own, or the packed one.

transformers keeps it in the configuration of each part. A tower for pictures or sound keeps its
own: what it attends to is in no memory.
"""

from typing import Any

from transformers import PreTrainedModel

from enginebay_hf.packed.attention import NAME


def switch(model: PreTrainedModel) -> None:
    """Have the layers of the language model, not those of its towers, call the function."""
    model.set_attn_implementation(_of_text(model.config))


def _of_text(config: Any) -> Any:
    """`NAME` for a language model's configuration, for one around it by the part it is in."""
    text = config.get_text_config(decoder=True)
    if text is config:
        return NAME
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    names = {
        name: NAME if part is text else _of_text(part)
        for name, part in parts.items()
        if part is not None and (part is text or _holds(part, text))
    }
    return names or NAME


def _holds(config: Any, text: Any) -> bool:
    parts = [getattr(config, name, None) for name in config.sub_configs]
    return any(part is text or (part is not None and _holds(part, text)) for part in parts)


def implementations(config: Any) -> dict[str, Any]:
    """The attention of a model and of its parts, as `set_attn_implementation` takes it."""
    parts = {name: getattr(config, name, None) for name in config.sub_configs}
    return {
        "": config._attn_implementation,
        **{name: implementations(part) for name, part in parts.items() if part is not None},
    }
