"""What of `SamplingParams` this backend cannot do.

Tokens are chosen by `backends.sampling`, not by the library's sampler: that one drops the token
which crosses `top_p`, never draws the last 0.02 % of the probability, leaves nothing to draw from
with some settings of XTC and of a late temperature, and takes 1 as off for `min_p`.
"""

UNSUPPORTED = frozenset({"adaptive_target", "adaptive_decay", "prompt_logprobs"})

UNSUPPORTED_WITH_DRAFTS = frozenset({"banned_strings"})
"""The library goes on along a draft whose tokens it has just taken back."""
