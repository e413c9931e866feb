"""The layers of the usual architectures, run with less around their products.

transformers' own code calls a dozen modules a layer, each with its hooks and keyword arguments, and
rotates queries and keys apart. Here a layer is one function over the model's own modules: the same
weights, norms and activations, in the same order, rounded at the same places.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from enginebay_hf.packed.attention import Attention
from enginebay_hf.packed.fused import SIBLINGS, FusedLinear, fused
from enginebay_hf.packed.kernels import Kind

_ARCHITECTURES = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "SeedOssForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
}
"""Others may look the same and differ where no probe comes to, at long contexts say."""

_QKV, _GATE_UP = SIBLINGS
_NORMS = {"input_layernorm", "post_attention_layernorm"}
_MORE_NORMS = {"pre_feedforward_layernorm", "post_feedforward_layernorm"}


def is_known(model: PreTrainedModel) -> bool:
    """Whether a model is one of transformers' classes that `Decoder` can run."""
    kind = type(model)
    own = sys.modules[kind.__module__].__name__.startswith("transformers.models.")
    hooked = any(hasattr(module, "_hf_hook") for module in model.modules())
    return own and kind.__name__ in _ARCHITECTURES and not hooked


class Decoder:
    """Runs a model's layers; `kinds` is how each of them attends."""

    def __init__(self, model: PreTrainedModel, kinds: Mapping[int, Kind]) -> None:
        base: Any = model.base_model
        config = model.config.get_text_config(decoder=True)
        self._embedding: nn.Module = base.embed_tokens
        self._rotary: nn.Module = base.rotary_emb
        self._norm = _norm(base.norm)
        self._model: Any = model
        self._cap: float | None = getattr(config, "final_logit_softcapping", None)
        self._layers = [_layer(layer, i, kinds[i]) for i, layer in enumerate(base.layers)]
        # Some have angles of their own for each type of layer.
        by_type = "layer_type" in inspect.signature(base.rotary_emb.forward).parameters
        self._types: list[str | None] = list(config.layer_types) if by_type else [None]
        self._types *= 1 if by_type else len(self._layers)

    def __call__(
        self,
        attention: Attention,
        token_ids: Tensor,
        positions: Tensor,
        wanted: Tensor,
        *,
        adapted: bool = False,
    ) -> Tensor:
        """The logits of the tokens `wanted`; `adapted`: adapters apply to some of the layers."""
        hidden: Tensor = self._embedding(token_ids)
        angles = {
            kind: self._angles(hidden, positions, *filter(None, [kind])) for kind in {*self._types}
        }
        for layer, kind in zip(self._layers, self._types, strict=True):
            hidden = layer.run(hidden, angles[kind], attention, adapted)
        head: Any = self._model.get_output_embeddings()
        logits: Tensor = head(self._norm(hidden[wanted]))
        if self._cap is not None:
            logits = torch.tanh(logits / self._cap) * self._cap
        return logits

    def _angles(self, hidden: Tensor, positions: Tensor, *kind: str) -> tuple[Tensor, Tensor]:
        cos, sin = self._rotary(hidden[None], positions[None], *kind)
        half = sin.shape[-1] // 2
        return cos[0, :, None], torch.cat((-sin[0, :, None, :half], sin[0, :, None, half:]), -1)


_Norm = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    index: int
    kind: Kind
    attention: Any
    qkv: FusedLinear | None
    mlp: Any
    gate_up: FusedLinear | None
    is_gated: bool
    size: int
    heads: int
    key_heads: int
    norms: tuple[_Norm, _Norm]
    norms_after: tuple[_Norm, _Norm] | None
    head_norms: tuple[_Norm, _Norm] | None

    def run(
        self, hidden: Tensor, angles: tuple[Tensor, Tensor], attention: Attention, adapted: bool
    ) -> Tensor:
        """The layer's output, `[tokens, size]`, in the memory of `hidden`."""
        new = self._attend(self.norms[0](hidden), angles, attention, adapted)
        if self.norms_after:
            new = self.norms_after[0](new)
        hidden += new
        new = self._feed(self.norms[1](hidden), adapted)
        if self.norms_after:
            new = self.norms_after[1](new)
        hidden += new
        return hidden

    def _attend(
        self, hidden: Tensor, angles: tuple[Tensor, Tensor], attention: Attention, adapted: bool
    ) -> Tensor:
        module, tokens, rotated = self.attention, len(hidden), self.heads + self.key_heads
        if self.qkv is None or adapted:
            parts = module.q_proj(hidden), module.k_proj(hidden), module.v_proj(hidden)
            all_heads = torch.cat(parts, -1).view(tokens, -1, self.size)
        else:
            all_heads = self.qkv.linear(hidden).view(tokens, -1, self.size)
        turning, value = all_heads[:, :rotated], all_heads[:, rotated:]
        if self.head_norms:
            query, key = turning[:, : self.heads], turning[:, self.heads :]
            turning = torch.cat((self.head_norms[0](query), self.head_norms[1](key)), 1)
        cos, sin = angles
        turned = (turning * cos).add_(turning.roll(self.size // 2, -1).mul_(sin)).transpose(0, 1)
        query, key = turned[: self.heads], turned[self.heads :]
        result = attention(self.index, query, key, value.transpose(0, 1), self.kind)
        output: Tensor = module.o_proj(result.reshape(tokens, -1))
        return output

    def _feed(self, hidden: Tensor, adapted: bool) -> Tensor:
        module = self.mlp
        if not self.is_gated:
            output = module(hidden[None])
            whole: Tensor = output[0] if isinstance(output, tuple) else output
            return whole[0]
        if self.gate_up is None or adapted:
            gate, up = module.gate_proj(hidden), module.up_proj(hidden)
        else:
            gate, up = self.gate_up.linear(hidden).chunk(2, -1)
        result: Tensor = module.down_proj(module.act_fn(gate).mul_(up))
        return result


def _layer(module: Any, index: int, kind: Kind) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    size = attention.head_dim
    sandwiched = hasattr(module, "pre_feedforward_layernorm")
    expected = {"self_attn", "mlp"} | _NORMS | (_MORE_NORMS if sandwiched else set())
    own = {name for name, _ in module.named_children()}
    if own != expected:
        raise ValueError(f"its layers have other parts: {', '.join(sorted(own ^ expected))}")
    is_gated = all(hasattr(mlp, name) for name in (*_GATE_UP, "down_proj", "act_fn"))
    after = _norm(module.post_attention_layernorm)
    before = _norm(module.input_layernorm)
    own_norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    query_norm, key_norm = (_norm(norm) if norm is not None else None for norm in own_norms)
    return _Layer(
        index=index,
        kind=kind,
        attention=attention,
        qkv=fused(attention, _QKV),
        mlp=mlp,
        gate_up=fused(mlp, _GATE_UP),
        is_gated=is_gated,
        size=size,
        heads=attention.q_proj.out_features // size,
        key_heads=attention.k_proj.out_features // size,
        norms=(before, _norm(module.pre_feedforward_layernorm) if sandwiched else after),
        norms_after=(after, _norm(module.post_feedforward_layernorm)) if sandwiched else None,
        head_norms=(query_norm, key_norm) if query_norm and key_norm else None,
    )


def _norm(module: nn.Module) -> _Norm:
    """Return the norm in one operation, if that gives the module's numbers; else the module.

    Classes differ in what they call epsilon, and whether they add 1 to the weight.
    """
    weight: Any = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, nn.Parameter) or weight.ndim != 1 or not isinstance(epsilon, float):
        return module
    tried = torch.linspace(-3, 3, 2 * weight.numel(), device=weight.device).view(2, -1)
    tried = tried.to(weight.dtype)
    expected = module(tried)
    for added in (0, 1):
        scale = weight.detach().float() + added
        norm = partial(_rms_norm, scale=scale, epsilon=epsilon)
        if torch.allclose(norm(tried), expected, rtol=torch.finfo(weight.dtype).eps):
            return norm
    return module


def _rms_norm(hidden: Tensor, scale: Tensor, epsilon: float) -> Tensor:
    normed = torch.rms_norm(hidden.float(), scale.shape, scale, epsilon)
    return normed.to(hidden.dtype)
