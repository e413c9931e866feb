"""A model's report for `enginebay models inspect` and the explain route."""

from enginebay.chat.schemas.explain_bodies import FormatReport, ModelReport, TemplateReport
from enginebay.config.schema import ModelConfig
from enginebay.contract.types import ModelInfo
from enginebay.models.served import ServedModel
from enginebay.models.template.features import TemplateFeatures
from enginebay.models.template.turn_end import turn_end_marker


def model_report(model: ServedModel, template: TemplateFeatures | None = None) -> ModelReport:
    """What the backend reports about a model, and what probing its chat template showed.

    The one that renders requests with tools, if no other is given.
    """
    info = model.info
    template = template or model.templates.choose(with_tools=True)
    reasoning, tools = model.formats.reasoning, model.formats.tools
    return ModelReport(
        id=model.name,
        backend=model.config.backend,
        context_length=info.context_length,
        vocab_size=info.vocab_size,
        limits=info.limits,
        capabilities=capabilities(info),
        embedding_size=info.embedding_size,
        shorter_embeddings=info.shorter_embeddings,
        prompts=dict(info.prompts),
        default_prompt=info.default_prompt,
        labels=list(info.labels),
        placeholders={str(kind): text for kind, text in info.placeholders.items()},
        media_options=sorted(info.media_options),
        special_tokens=dict(info.special_tokens),
        defaults=dict(info.defaults),
        configured=model.config.sampling.params,
        unsupported=sorted(info.unsupported),
        constraints=info.constraints,
        adapters=list(info.adapters),
        templates=list(model.templates.names),
        template=template and template_report(template, model.config),
        reasoning=FormatReport(name=reasoning.name, evidence=reasoning.evidence),
        tools=FormatReport(name=tools.name, evidence=tools.evidence),
    )


def capabilities(info: ModelInfo) -> list[str]:
    """What a model supports on its backend besides plain text."""
    can = {
        "text": info.generates and not info.chats,
        "chats": info.chats,
        "images": "image" in info.modalities,
        "audio": "audio" in info.modalities,
        "video": "video" in info.modalities,
        "embeddings": info.embedding_size is not None,
        "reranking": info.reranks,
        "classification": bool(info.labels),
        "constraints": info.constraints,
        "reasoning budgets": info.generates and "reasoning_budget" not in info.unsupported,
        "logprobs": info.generates and "logprobs" not in info.unsupported,
        "adapters": bool(info.adapters),
    }
    return [name for name, known in can.items() if known]


def template_report(features: TemplateFeatures, config: ModelConfig) -> TemplateReport:
    """What probing a chat template showed."""
    known = {*config.template_vars, *config.force_template_vars}
    return TemplateReport(
        name=features.template.name,
        bos=features.bos,
        system=features.knows_system,
        several_systems=features.takes_several_systems,
        later_systems=features.takes_later_systems,
        developer=features.knows_developer,
        tools=features.knows_tools,
        tool_results=features.knows_tool_results,
        reasoning=features.knows_reasoning,
        documents=features.knows_documents,
        content=features.content_format,
        arguments=features.arguments_format,
        variables=sorted(features.template.settings),
        mistakes=[
            mistake for name, mistake in features.template.mistakes.items() if name not in known
        ],
        stop_strings=list(features.template.stop_strings),
        turn_end=turn_end_marker(features),
    )
