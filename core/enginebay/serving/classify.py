"""Labels of texts, and scores by reward models, from body to answer."""

from collections.abc import Sequence
from time import time

import numpy as np
from numpy.typing import NDArray

from enginebay.chat.answer.running import RunningRequest
from enginebay.chat.schemas.usage_bodies import PromptUsage
from enginebay.contract.errors import WrongModelError
from enginebay.contract.types import ModelInfo
from enginebay.models.served import ServedModel, routes
from enginebay.serving.pooling import Pooled, Pooling, Prompts
from enginebay.serving.pooling_tokens import input_tokens, inputs_tokens
from enginebay.serving.schemas.classify_bodies import (
    Classification,
    ClassifyAnswer,
    ClassifyRequest,
    ScoreEvaluation,
    ScoreEvaluationRequest,
)
from enginebay.serving.schemas.pooling_fields import CutFields

Logits = NDArray[np.float64]


async def classify(
    pooling: Pooling, body: ClassifyRequest, running: RunningRequest
) -> Pooled[ClassifyAnswer]:
    """The likeliest label of each input, as `/v1/classify` answers."""
    running.expect_answer(f"classify-{running.id}", stream=False)
    model = await pooling.served(
        running,
        body.model,
        lambda info: bool(info.labels) and not info.reranks,
        lambda info: bool(info.labels),
        what="classification",
        choice="a classifier",
    )
    pooling.accept(body.unknown)
    prompts, params = await inputs_tokens(
        model, body.input, body, name="input", add_special_tokens=body.add_special_tokens
    )
    running.choices = len(prompts)
    logits = await heads(pooling, running, model, prompts, params, priority=body.priority)
    answer = ClassifyAnswer(
        id=running.shown_id,
        created=int(time()),
        model=model.name,
        data=[
            _classification(model.info, index, one, raw=not body.use_activation)
            for index, one in enumerate(logits)
        ],
        usage=PromptUsage.of(prompts),
    )
    return Pooled(answer, body.unknown)


async def score_evaluation(
    pooling: Pooling, body: ScoreEvaluationRequest, running: RunningRequest
) -> Pooled[ScoreEvaluation]:
    """What a reward model says of each text, as `/v1/score/evaluation` answers.

    `WrongModelError` for a model that has no head with one output.
    """
    running.expect_answer(f"scoreval-{running.id}", stream=False)
    model = await pooling.hold(
        running,
        body.model,
        lambda info: len(info.labels) == 1 and not info.reranks,
        lambda info: len(info.labels) == 1,
    )
    if len(model.info.labels) != 1 or model.adapter:
        raise WrongModelError(
            f"model {model.asked!r} cannot score texts: that takes a reward model, or another "
            f"classifier with one label; its routes: {', '.join(routes(model.info))}",
            param="model",
        )
    pooling.accept(body.unknown)
    cut = CutFields(truncate_prompt_tokens=body.max_length or -1)
    params = [f"messages[{index}]" for index in range(len(body.messages))]
    prompts = [
        await input_tokens(model, text, cut, param=param, add_special_tokens=False)
        for text, param in zip(body.messages, params, strict=True)
    ]
    running.choices = len(prompts)
    logits = await heads(pooling, running, model, prompts, params, priority=body.priority)
    scores = [float(logit) for [logit] in logits]
    return Pooled(
        ScoreEvaluation(id=running.shown_id, model=model.name, scores=scores), body.unknown
    )


async def heads(
    pooling: Pooling,
    running: RunningRequest,
    model: ServedModel,
    prompts: Prompts,
    params: Sequence[str],
    *,
    priority: int,
) -> list[Logits]:
    """What the model's head says of each prompt, a number for each label."""
    return await pooling.computed(
        running, model, prompts, params, model.backend.classify, priority=priority
    )


def _classification(info: ModelInfo, index: int, logits: Logits, *, raw: bool) -> Classification:
    probabilities = logits if raw else _probabilities(info, logits)
    return Classification(
        index=index,
        label=info.labels[int(np.argmax(logits))],
        probs=probabilities.tolist(),
        num_classes=len(info.labels),
    )


def _probabilities(info: ModelInfo, logits: Logits) -> Logits:
    """One for each label, of which one applies, or several may; a single one applies or not."""
    if info.multi_label or len(info.labels) == 1:
        decay = np.exp(-np.abs(logits))  # of the smaller side, so that nothing overflows
        sigmoid: Logits = np.where(logits >= 0, 1, decay) / (1 + decay)
        return sigmoid
    powers = np.exp(logits - logits.max())
    softmax: Logits = powers / powers.sum()
    return softmax
