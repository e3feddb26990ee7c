"""The DeepSeek-V3-style transformer: a plain reference, and a fast training path of the same function.

Parameters carry the public names (`model.layers.N.self_attn.kv_b_proj.weight`, ...), except that the
routed experts of a layer are stacked while training: `mlp.gate_up` [E, 2F, D] (gate rows, then up rows)
and `mlp.down` [E, D, F]; `export_tensors` splits them.

Rotary convention (`rope_interleave` true, as in the released checkpoints): in the rope part of q and k the
elements 2i and 2i+1 form pair i, rotated by position * theta^(-2i/rope_dim). The order in which rotated
elements are stored doesn't matter to the scores; here each pair stays in place.

`reference` is fp32 throughout, non-absorbed attention, one sequence; golden files come from it. The class
`Model` is the training path: tokens of all sequences flattened to [T], attention over groups of sequences
of similar length, bf16 matrix products with fp32 master weights, residual stream, norms and router.
"""
import math

import torch
import torch.nn.functional as F

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rope_interleave": True,
    "attention_bias": False,
    "intermediate_size": 512,
    "hidden_act": "silu",
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "vocab_size": 2048,
    "tie_word_embeddings": False,
    "use_cache": True,
    "torch_dtype": "bfloat16",
}


# --- Reference -------------------------------------------------------------------------------------

def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope_tables(config, positions):
    """cos, sin [T, rope_dim / 2] of integer positions [T]; angles in double precision."""
    half = config["qk_rope_head_dim"] // 2
    inverse = config["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = positions.double()[:, None] * inverse
    return angle.cos().float(), angle.sin().float()


def rotate(x, cos, sin):
    """x [..., T, rope_dim], pairs (2i, 2i+1)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def route(scores, bias, top_k):
    """Experts [T, k] in ascending id, and their weights [T, k]. scores: sigmoid, [T, E]; ties by id."""
    order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices[:, :top_k]
    experts = order.sort(-1).values
    weights = scores.gather(1, experts)
    return experts, weights / (weights.sum(-1, keepdim=True) + 1e-20)


def swiglu(x, tensors, prefix):
    gate = x @ tensors[prefix + "gate_proj.weight"].T
    up = x @ tensors[prefix + "up_proj.weight"].T
    return (gate * torch.sigmoid(gate) * up) @ tensors[prefix + "down_proj.weight"].T


def reference(config, tensors, ids, kv_bf16=False, cache=None, start=0):
    """Logits [T, vocab] of one sequence. tensors: fp32 by public name; fp32 arithmetic.

    kv_bf16 rounds the normed latent and the rotated rope key to bf16 before use, as a bf16 cache does.
    cache: a list that keeps (latent, rope key) of each layer between calls; `start` is the position
    of ids[0].
    """
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    rope, value, rank = config["qk_rope_head_dim"], config["v_head_dim"], config["kv_lora_rank"]
    eps, count = config["rms_norm_eps"], len(ids)
    positions = torch.arange(start, start + count)
    cos, sin = rope_tables(config, positions)
    x = tensors["model.embed_tokens.weight"][torch.as_tensor(ids)]
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        h = rms_norm(x, tensors[p + "input_layernorm.weight"], eps)
        q = (h @ tensors[p + "self_attn.q_proj.weight"].T).view(count, heads, nope + rope).transpose(0, 1)
        q_nope, q_rope = q[..., :nope], rotate(q[..., nope:], cos, sin)
        compressed = h @ tensors[p + "self_attn.kv_a_proj_with_mqa.weight"].T
        latent = rms_norm(compressed[:, :rank], tensors[p + "self_attn.kv_a_layernorm.weight"], eps)
        k_rope = rotate(compressed[:, rank:], cos, sin)
        if kv_bf16:
            latent, k_rope = latent.bfloat16().float(), k_rope.bfloat16().float()
        if cache is not None:
            if len(cache) > layer:
                latent = torch.cat((cache[layer][0], latent))
                k_rope = torch.cat((cache[layer][1], k_rope))
                cache[layer] = (latent, k_rope)
            else:
                cache.append((latent, k_rope))
        kv = (latent @ tensors[p + "self_attn.kv_b_proj.weight"].T).view(len(latent), heads, nope + value)
        k_nope, v = kv.transpose(0, 1).split((nope, value), -1)
        scores = (q_nope @ k_nope.transpose(1, 2) + q_rope @ k_rope.T) / math.sqrt(nope + rope)
        hidden = torch.arange(len(latent))[None, :] > positions[:, None]
        mixed = torch.softmax(scores.masked_fill(hidden, -math.inf), -1) @ v
        x = x + mixed.transpose(0, 1).reshape(count, -1) @ tensors[p + "self_attn.o_proj.weight"].T
        h = rms_norm(x, tensors[p + "post_attention_layernorm.weight"], eps)
        if layer < config["first_k_dense_replace"]:
            x = x + swiglu(h, tensors, p + "mlp.")
            continue
        scores = torch.sigmoid(h @ tensors[p + "mlp.gate.weight"].T)
        experts, weights = route(scores, tensors[p + "mlp.gate.e_score_correction_bias"],
                                 config["num_experts_per_tok"])
        weights = weights * config["routed_scaling_factor"]
        y = torch.zeros_like(h)
        for e in experts.unique().tolist():
            rows, slot = (experts == e).nonzero(as_tuple=True)
            if len(rows):
                y[rows] += weights[rows, slot, None] * swiglu(h[rows], tensors, f"{p}mlp.experts.{e}.")
        x = x + y + swiglu(h, tensors, p + "mlp.shared_experts.")
    return rms_norm(x, tensors["model.norm.weight"], eps) @ tensors["lm_head.weight"].T


# --- Training path ---------------------------------------------------------------------------------

class _Linear(torch.autograd.Function):
    """y = x W^T with bf16 operands; y is bf16, the weight gradient fp32."""

    @staticmethod
    def forward(ctx, x, weight):
        x16, w16 = x.bfloat16(), weight.bfloat16()
        ctx.save_for_backward(x16, w16)
        ctx.x_dtype = x.dtype
        return x16 @ w16.T

    @staticmethod
    def backward(ctx, dy):
        x16, w16 = ctx.saved_tensors
        dy = dy.bfloat16()
        return (dy @ w16).to(ctx.x_dtype), (dy.T @ x16).float()


class _RmsNorm(torch.autograd.Function):
    """fp32 or bf16 in, bf16 out."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        x = x.float()
        scale = torch.rsqrt(torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
                            .div_(x.shape[-1]).add_(eps))
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return (normed * weight).bfloat16()

    @staticmethod
    def backward(ctx, dy):
        normed, scale, weight = ctx.saved_tensors
        dy = dy.float()
        product = dy * normed
        d_weight = product.sum(0)
        mean = (product @ weight).div_(weight.shape[0]).unsqueeze(-1)
        return (dy * weight).sub_(normed * mean).mul_(scale), d_weight, None


def _silu_mul_forward(both):
    gate, up = both.float().chunk(2, -1)
    sig = torch.sigmoid(gate)
    return gate, up, sig, (gate * sig).mul_(up).bfloat16()


def _silu_mul_backward(both, dy):
    """Gradient of silu(gate) * up for both = [gate, up], in bf16."""
    gate, up = both.float().chunk(2, -1)
    dy = dy.float()
    sig = torch.sigmoid(gate)
    act = gate * sig
    out = torch.empty(both.shape, dtype=torch.bfloat16)
    width = gate.shape[-1]
    out[..., width:] = dy * act
    out[..., :width] = act.neg().mul_(sig).add_(sig).add_(act).mul_(up).mul_(dy)
    return out


class _SiluMul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, both):
        ctx.save_for_backward(both)
        return _silu_mul_forward(both)[3]

    @staticmethod
    def backward(ctx, dy):
        return _silu_mul_backward(ctx.saved_tensors[0], dy)


class _Experts(torch.autograd.Function):
    """Routed experts over tokens sorted by expert: one product per expert and matrix.

    x bf16 [T, D]; experts int64 [T, k]; weights fp32 [T, k]; gate_up [E, 2F, D]; down [E, D, F].
    """

    @staticmethod
    def forward(ctx, x, experts, weights, gate_up, down):
        top_k = experts.shape[1]
        order = experts.reshape(-1).argsort()
        counts = torch.bincount(experts.reshape(-1), minlength=gate_up.shape[0]).tolist()
        token = order.div(top_k, rounding_mode="floor")
        xs, gu16, d16 = x[token], gate_up.bfloat16(), down.bfloat16()
        both = torch.empty(len(token), gate_up.shape[1], dtype=torch.bfloat16)
        at = 0
        for e, n in enumerate(counts):
            if n:
                torch.mm(xs[at:at + n], gu16[e].T, out=both[at:at + n])
            at += n
        act = _silu_mul_forward(both)[3]
        ys = torch.empty(len(token), x.shape[1], dtype=torch.bfloat16)
        at = 0
        for e, n in enumerate(counts):
            if n:
                torch.mm(act[at:at + n], d16[e].T, out=ys[at:at + n])
            at += n
        w = weights.reshape(-1)[order].unsqueeze(-1)
        spread = torch.empty(len(token), x.shape[1])
        spread[order] = ys.float().mul_(w)
        ctx.save_for_backward(xs, both, act, ys, w, order, gu16, d16)
        ctx.counts, ctx.top_k = counts, top_k
        return spread.view(len(x), top_k, -1).sum(1)

    @staticmethod
    def backward(ctx, dy):
        xs, both, act, ys, w, order, gu16, d16 = ctx.saved_tensors
        token = order.div(ctx.top_k, rounding_mode="floor")
        dys = dy[token]
        d_weights = torch.empty(len(token))
        d_weights[order] = (dys * ys).sum(-1)
        dys = dys.mul_(w).bfloat16()
        d_act = torch.empty_like(act)
        d_down = torch.zeros(d16.shape)
        at = 0
        for e, n in enumerate(ctx.counts):
            if n:
                torch.mm(dys[at:at + n], d16[e], out=d_act[at:at + n])
                d_down[e] = dys[at:at + n].T @ act[at:at + n]
            at += n
        d_both = _silu_mul_backward(both, d_act)
        dxs = torch.empty_like(xs)
        d_gu = torch.zeros(gu16.shape)
        at = 0
        for e, n in enumerate(ctx.counts):
            if n:
                torch.mm(d_both[at:at + n], gu16[e], out=dxs[at:at + n])
                d_gu[e] = d_both[at:at + n].T @ xs[at:at + n]
            at += n
        spread = torch.empty_like(dxs)
        spread[order] = dxs
        dx = spread.view(dy.shape[0], ctx.top_k, -1).sum(1)
        return dx, None, d_weights.view(-1, ctx.top_k), d_gu, d_down


_MASKS = {}


def _mask(length):
    if length not in _MASKS:
        _MASKS[length] = torch.full((length, length), -1e30).triu(1).bfloat16()
    return _MASKS[length]


class _Attention(torch.autograd.Function):
    """Causal attention of rows [R, H, L, d], bf16, queries in blocks so that hidden keys cost nothing."""

    BLOCK = 256

    @staticmethod
    def forward(ctx, q, k, v, scale):
        q = q * scale            # a power of two in our configuration, so exact in bf16
        length = q.shape[2]
        out = torch.empty(*v.shape, dtype=torch.bfloat16)
        saved = []
        for a in range(0, length, _Attention.BLOCK):
            b = min(length, a + _Attention.BLOCK)
            scores = q[:, :, a:b] @ k[:, :, :b].transpose(2, 3)
            scores[..., a:b] += _mask(b - a)
            probs = torch.softmax(scores, -1)
            out[:, :, a:b] = probs @ v[:, :, :b]
            saved.append(probs)
        ctx.save_for_backward(q, k, v, *saved)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, d_out):
        q, k, v, *saved = ctx.saved_tensors
        length, block = q.shape[2], _Attention.BLOCK
        one = len(saved) == 1
        dq = torch.empty_like(q)
        dk = torch.zeros(k.shape, dtype=torch.bfloat16 if one else torch.float32)
        dv = torch.zeros(v.shape, dtype=torch.bfloat16 if one else torch.float32)
        for index, a in enumerate(range(0, length, block)):
            b, probs = min(length, a + block), saved[index]
            do = d_out[:, :, a:b]
            dv[:, :, :b] += probs.transpose(2, 3) @ do
            d_scores = torch._softmax_backward_data(do @ v[:, :, :b].transpose(2, 3), probs, -1,
                                                    torch.bfloat16)
            dq[:, :, a:b] = d_scores @ k[:, :, :b]
            dk[:, :, :b] += d_scores.transpose(2, 3) @ q[:, :, a:b]
        return dq.mul_(ctx.scale), dk.bfloat16(), dv.bfloat16(), None


class Model(torch.nn.Module):
    def __init__(self, config, generator=None):
        super().__init__()
        self.config = config
        d, vocab = config["hidden_size"], config["vocab_size"]
        heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
        rope, value, rank = config["qk_rope_head_dim"], config["v_head_dim"], config["kv_lora_rank"]
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        self.parameters_ = {}
        self.biases = {}

        def add(name, *shape, std=0.04):
            data = torch.ones(*shape) if std is None else torch.randn(*shape, generator=generator) * std
            self.parameters_[name] = torch.nn.Parameter(data)

        add("model.embed_tokens.weight", vocab, d)
        for layer in range(config["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            add(p + "input_layernorm.weight", d, std=None)
            add(p + "post_attention_layernorm.weight", d, std=None)
            add(p + "self_attn.q_proj.weight", heads * (nope + rope), d)
            add(p + "self_attn.kv_a_proj_with_mqa.weight", rank + rope, d)
            add(p + "self_attn.kv_a_layernorm.weight", rank, std=None)
            add(p + "self_attn.kv_b_proj.weight", heads * (nope + value), rank, std=0.08)
            add(p + "self_attn.o_proj.weight", d, heads * value)
            if layer < config["first_k_dense_replace"]:
                add(p + "mlp.gate_up", 2 * config["intermediate_size"], d)
                add(p + "mlp.down", d, config["intermediate_size"])
            else:
                add(p + "mlp.gate.weight", experts, d)
                self.biases[p + "mlp.gate.e_score_correction_bias"] = torch.zeros(experts)
                add(p + "mlp.experts.gate_up", experts, 2 * width, d)
                add(p + "mlp.experts.down", experts, d, width)
                add(p + "mlp.shared_experts.gate_up", 2 * width * config["n_shared_experts"], d)
                add(p + "mlp.shared_experts.down", d, width * config["n_shared_experts"])
        add("model.norm.weight", d, std=None)
        add("lm_head.weight", vocab, d)
        for name, parameter in self.parameters_.items():
            self.register_parameter(name.replace(".", "/"), parameter)
        self.loads = {}          # tokens per expert of the last step, by name of the layer's bias

    def forward(self, ids, positions, groups, wanted):
        """Logits (bf16) at the flat indices `wanted`.

        ids, positions [T]; groups: list of index tensors [R, L] into the flat tokens, rows padded by
        repeating any index (padding is after all real tokens of a row, so it is never attended to);
        wanted [N].
        """
        c, P = self.config, self.parameters_
        heads, nope = c["num_attention_heads"], c["qk_nope_head_dim"]
        rope, value, rank = c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        eps, count = c["rms_norm_eps"], len(ids)
        cos, sin = rope_tables(c, positions)
        scale = 1 / math.sqrt(nope + rope)
        # Flat tokens in the order of the groups, and the way back (the first copy of each token).
        gathered = torch.cat([g.reshape(-1) for g in groups])
        back = torch.empty(count, dtype=torch.long)
        back[gathered.flip(0)] = torch.arange(len(gathered) - 1, -1, -1)
        spans, at = [], 0
        for g in groups:
            spans.append((at, at + g.numel(), g.shape[0], g.shape[1]))
            at += g.numel()

        x = F.embedding(ids, P["model.embed_tokens.weight"])
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = _RmsNorm.apply(x, P[p + "input_layernorm.weight"], eps)
            q = _Linear.apply(h, P[p + "self_attn.q_proj.weight"]).view(count, heads, nope + rope)
            q = torch.cat((q[..., :nope],
                           rotate(q[..., nope:].float(), cos[:, None], sin[:, None]).bfloat16()), -1)
            compressed = _Linear.apply(h, P[p + "self_attn.kv_a_proj_with_mqa.weight"])
            latent = _RmsNorm.apply(compressed[:, :rank], P[p + "self_attn.kv_a_layernorm.weight"], eps)
            k_rope = rotate(compressed[:, rank:].float(), cos, sin).bfloat16()
            kv = _Linear.apply(latent, P[p + "self_attn.kv_b_proj.weight"]).view(count, heads, -1)
            k = torch.cat((kv[..., :nope], k_rope[:, None].expand(-1, heads, -1)), -1)
            packed = torch.cat((q, k, kv[..., nope:]), -1)[gathered]
            outs = []
            for a, b, rows, length in spans:
                part = packed[a:b].view(rows, length, heads, -1).transpose(1, 2)
                gq, gk, gv = part.split((nope + rope, nope + rope, value), -1)
                o = _Attention.apply(gq.contiguous(), gk.contiguous(), gv.contiguous(), scale)
                outs.append(o.transpose(1, 2).reshape(rows * length, heads * value))
            mixed = torch.cat(outs)[back]
            x = x + _Linear.apply(mixed, P[p + "self_attn.o_proj.weight"])
            h = _RmsNorm.apply(x, P[p + "post_attention_layernorm.weight"], eps)
            if layer < c["first_k_dense_replace"]:
                x = x + self._mlp(h, p + "mlp.")
            else:
                x = x + self._moe(h, p + "mlp.") + self._mlp(h, p + "mlp.shared_experts.")
        x = _RmsNorm.apply(x[wanted], P["model.norm.weight"], eps)
        return _Linear.apply(x, P["lm_head.weight"])

    def _mlp(self, h, prefix):
        both = _Linear.apply(h, self.parameters_[prefix + "gate_up"])
        return _Linear.apply(_SiluMul.apply(both), self.parameters_[prefix + "down"])

    def _moe(self, h, prefix):
        P, bias_name = self.parameters_, prefix + "gate.e_score_correction_bias"
        scores = torch.sigmoid(h.float() @ P[prefix + "gate.weight"].T)
        with torch.no_grad():
            chosen = (scores + self.biases[bias_name]).topk(self.config["num_experts_per_tok"], -1)
            experts = chosen.indices
            self.loads[bias_name] = torch.bincount(experts.reshape(-1), minlength=scores.shape[1])
        weights = scores.gather(1, experts)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return _Experts.apply(h, experts, weights * self.config["routed_scaling_factor"],
                              P[prefix + "experts.gate_up"], P[prefix + "experts.down"])

    def export_tensors(self):
        """{public name: tensor}: bf16, the selection biases fp32."""
        out = {}
        for name, parameter in self.parameters_.items():
            data = parameter.detach().bfloat16()
            if name.endswith("gate_up"):
                stem = name[:-len("gate_up")]
                stacked = data if data.dim() == 3 else data[None]
                for e, matrix in enumerate(stacked):
                    gate, up = matrix.chunk(2)
                    at = f"{stem}{e}." if data.dim() == 3 else stem
                    out[at + "gate_proj.weight"], out[at + "up_proj.weight"] = gate.clone(), up.clone()
            elif name.endswith(".down"):
                stem = name[:-len("down")]
                for e, matrix in enumerate(data if data.dim() == 3 else data[None]):
                    out[(f"{stem}{e}." if data.dim() == 3 else stem) + "down_proj.weight"] = matrix.clone()
            else:
                out[name] = data
        for name, bias in self.biases.items():
            out[name] = (bias - bias.mean()).float()
        return out
