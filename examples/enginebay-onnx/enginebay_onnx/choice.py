"""One choice of a request, token by token."""

from dataclasses import dataclass, field, replace
from typing import Any

from enginebay import Completion, Delta, GenerationRequest, allowed_tokens
from enginebay_onnx.folder import Folder
from enginebay_onnx.sampling import Logits, Sampler, token_logprob


@dataclass(eq=False, slots=True)
class Choice:
    """`token_ids` are those of prompt and completion; `opening` goes into its first delta."""

    request: GenerationRequest
    completion: Completion
    sampler: Sampler
    token_ids: list[int]
    opening: dict[str, Any] = field(default_factory=dict)

    def next(self, logits: Logits, folder: Folder) -> Delta:
        """Pick a token by the logits `[vocabulary]`; what the choice gains by it."""
        token_id, asked = self.completion.forced, self.request.sampling.logprobs
        if token_id is None:
            constraint, allowed = self.completion.constraint, None
            if constraint and constraint.mask is not None:
                allowed = allowed_tokens(constraint.mask, len(logits))
            token_id = self.sampler.sample(logits, allowed)
        entry = None
        if asked is not None:
            entry = token_logprob(logits, token_id, asked, folder.token_text)
        self.token_ids.append(token_id)
        self.sampler.add(token_id)
        opening, self.opening = self.opening, {}
        return replace(self.completion.append(token_id, entry), **opening)
