"""Bodies of `/v1/classify` and `/v1/score/evaluation`.

The first is vLLM's (https://docs.vllm.ai/en/latest/models/pooling_models/classify/), the second
LLaMA-Factory's (`src/llamafactory/api/protocol.py` in https://github.com/hiyouga/LLaMA-Factory).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from enginebay.chat.schemas.usage_bodies import PromptUsage
from enginebay.config.field_types import Scalars
from enginebay.serving.schemas.embedding_bodies import Inputs
from enginebay.serving.schemas.pooling_fields import (
    CutFields,
    ListAnswer,
    PoolingBody,
    not_too_many,
)


class ClassifyRequest(CutFields):
    """Texts to classify. `use_activation`: false for what the model's head says."""

    input: Inputs
    use_activation: bool = True
    add_special_tokens: bool = True


class Classification(BaseModel):
    """The likeliest label of input number `index`, and a probability for each label."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(ListAnswer):
    """A classification for each input, in their order."""

    id: str
    created: int
    data: list[Classification]
    usage: PromptUsage


def _messages(value: Any) -> Any:
    if not isinstance(value, list):
        raise ValueError("must be a list of strings")
    return not_too_many(value)


class ScoreEvaluationRequest(PoolingBody):
    """Texts for a reward model, as its chat template renders them: nothing is added.

    `max_length`: tokens; what is more is cut off at the end. At most the model's context.
    """

    messages: Annotated[Scalars[str], Field(min_length=1), BeforeValidator(_messages)]
    max_length: Annotated[int, Field(ge=1, lt=2**31)] | None = None


class ScoreEvaluation(BaseModel):
    """What the reward model says of each text, in their order."""

    id: str
    object: Literal["score.evaluation"] = "score.evaluation"
    model: str
    scores: list[float]
