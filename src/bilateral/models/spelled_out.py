"""Composite layers of torch written out in calls that have rules, for the trace to record in their place.

`torch.fx` records nn.MultiheadAttention as one call, and its `forward` cannot be traced: it looks at shapes and chooses
between kernels. Here it is in plain calls, and so are the Transformer layers. That they compute what torch's own
layers compute is checked twice: in tests, and on every model that is analysed (`calls.check_record` runs the record
beside the module itself).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bilateral.errors import UnsupportedLayerError


def joined_mask(
    attention_mask: Tensor | None, padding_mask: Tensor | None, num_heads: int, dtype: torch.dtype
) -> Tensor:
    """Both masks of nn.MultiheadAttention, in which True shuts out, as one of numbers that are added to the scores."""
    parts = []
    if attention_mask is not None:
        by_head = (-1, num_heads, *attention_mask.shape[1:])
        wide = attention_mask.reshape(by_head) if attention_mask.dim() == 3 else attention_mask
        parts.append(_as_numbers(wide))
    if padding_mask is not None:
        parts.append(_as_numbers(padding_mask)[..., None, None, :])
    return (parts[0] + parts[1] if len(parts) == 2 else parts[0]).to(dtype)


def _as_numbers(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, float("-inf"))


def returned_weights(query: Tensor) -> Tensor:
    """Stands for the attention weights that nn.MultiheadAttention returns beside its output; nobody may use them."""
    return query


fx.wrap("joined_mask")
fx.wrap("returned_weights")


def multi_head_attention(
    m: nn.MultiheadAttention,
    query: Any,
    key: Any,
    value: Any,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    average_attn_weights: bool = True,  # noqa: ARG001 (torch's argument; nobody may use the weights)
    is_causal: bool = False,
) -> tuple[Any, Any]:
    if m.bias_k is not None or m.bias_v is not None or m.add_zero_attn:
        raise UnsupportedLayerError(
            "MultiheadAttention cannot be protected: there is no rule for add_bias_kv and add_zero_attn.",
            remedy="Leave them out; a learned token that is joined to the inputs does the same.",
        )
    if not m.batch_first:
        alike = key is query, value is key
        query = query.transpose(0, 1)
        key = query if alike[0] else key.transpose(0, 1)
        value = key if alike[1] else value.transpose(0, 1)
    q, k, v = (x.unflatten(-1, (m.num_heads, -1)).transpose(-3, -2) for x in _projected(m, query, key, value))
    is_causal = is_causal and key_padding_mask is None and not need_weights
    mask = None
    if (attn_mask is not None and not is_causal) or key_padding_mask is not None:
        mask = joined_mask(attn_mask, key_padding_mask, m.num_heads, q.dtype)
    dropout = m.dropout if m.training else 0.0
    heads = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
    output = m.out_proj(heads.transpose(-3, -2).flatten(-2))
    if not m.batch_first:
        output = output.transpose(0, 1)
    return output, returned_weights(output) if need_weights else None


def _projected(m: nn.MultiheadAttention, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    size = m.embed_dim
    if not m._qkv_same_embed_dim:
        weights = (m.q_proj_weight, m.k_proj_weight, m.v_proj_weight)
        found = [F.linear(x, w) for x, w in zip((query, key, value), weights, strict=True)]
        if m.in_proj_bias is not None:
            found = [x + m.in_proj_bias[i * size : (i + 1) * size] for i, x in enumerate(found)]
        return found[0], found[1], found[2]
    whole = {id(x): F.linear(x, m.in_proj_weight, m.in_proj_bias) for x in (query, key, value)}
    found = [whole[id(x)][..., i * size : (i + 1) * size] for i, x in enumerate((query, key, value))]
    return found[0], found[1], found[2]


def encoder_layer(
    m: nn.TransformerEncoderLayer,
    src: Any,
    src_mask: Any = None,
    src_key_padding_mask: Any = None,
    is_causal: bool = False,
) -> Any:
    def attend(x: Any) -> Any:
        return _attended(m.self_attn, m.dropout1, x, x, src_mask, src_key_padding_mask, is_causal)

    if m.norm_first:
        x = src + attend(m.norm1(src))
        return x + _fed(m, m.dropout2, m.norm2(x))
    x = m.norm1(src + attend(src))
    return m.norm2(x + _fed(m, m.dropout2, x))


def decoder_layer(
    m: nn.TransformerDecoderLayer,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: bool = False,
    memory_is_causal: bool = False,
) -> Any:
    def attend(x: Any) -> Any:
        return _attended(m.self_attn, m.dropout1, x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal)

    def look(x: Any) -> Any:
        return _attended(
            m.multihead_attn, m.dropout2, x, memory, memory_mask, memory_key_padding_mask, memory_is_causal
        )

    if m.norm_first:
        x = tgt + attend(m.norm1(tgt))
        x = x + look(m.norm2(x))
        return x + _fed(m, m.dropout3, m.norm3(x))
    x = m.norm1(tgt + attend(tgt))
    x = m.norm2(x + look(x))
    return m.norm3(x + _fed(m, m.dropout3, x))


def _attended(layer: Any, dropout: nn.Module, x: Any, other: Any, mask: Any, padding: Any, is_causal: bool) -> Any:
    found, _ = layer(x, other, other, attn_mask=mask, key_padding_mask=padding, need_weights=False, is_causal=is_causal)
    return dropout(found)


def _fed(m: Any, dropout: nn.Module, x: Any) -> Any:
    return dropout(m.linear2(m.dropout(m.activation(m.linear1(x)))))


def encoder(
    m: nn.TransformerEncoder, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: Any = None
) -> Any:
    x = src
    for layer in m.layers:
        x = layer(x, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=bool(is_causal))
    return x if m.norm is None else m.norm(x)


def decoder(
    m: nn.TransformerDecoder,
    tgt: Any,
    memory: Any,
    tgt_mask: Any = None,
    memory_mask: Any = None,
    tgt_key_padding_mask: Any = None,
    memory_key_padding_mask: Any = None,
    tgt_is_causal: Any = None,
    memory_is_causal: bool = False,
) -> Any:
    x = tgt
    for layer in m.layers:
        x = layer(
            x,
            memory,
            tgt_mask=tgt_mask,
            memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
            tgt_is_causal=bool(tgt_is_causal),
            memory_is_causal=memory_is_causal,
        )
    return x if m.norm is None else m.norm(x)


SPELLED_OUT: Final[dict[type[nn.Module], Callable[..., Any]]] = {
    nn.MultiheadAttention: multi_head_attention,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerDecoderLayer: decoder_layer,
    nn.TransformerEncoder: encoder,
    nn.TransformerDecoder: decoder,
}


def drop_unused_weights(graph: fx.Graph) -> None:
    """Take attention weights that nobody uses out of the record."""
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is returned_weights and not node.users:
            graph.erase_node(node)
