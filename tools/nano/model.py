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

from .kernels import call

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 192,
    "num_hidden_layers": 5,
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
    """fp32 in, bf16 out."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        x = x.contiguous()
        y, scale = torch.empty(x.shape, dtype=torch.bfloat16), torch.empty(len(x))
        call("rms_forward", x, weight, y, scale, len(x), x.shape[1], eps)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, scale = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.empty_like(weight)
        call("rms_backward", dy.contiguous(), x, weight, scale, dx, dw, len(x), x.shape[1])
        return dx, dw, None


def _silu_mul(both):
    out = torch.empty(len(both), both.shape[1] // 2, dtype=torch.bfloat16)
    call("silu_forward", both, out, len(out), out.shape[1])
    return out


def _silu_mul_backward(both, dy):
    out = torch.empty_like(both)
    call("silu_backward", both, dy.contiguous(), out, len(dy), dy.shape[1])
    return out


class _SiluMul(torch.autograd.Function):
    """silu(gate) * up of [gate, up], bf16."""

    @staticmethod
    def forward(ctx, both):
        ctx.save_for_backward(both)
        return _silu_mul(both)

    @staticmethod
    def backward(ctx, dy):
        return _silu_mul_backward(ctx.saved_tensors[0], dy)


class _Experts(torch.autograd.Function):
    """Routed experts over tokens sorted by expert: one product per expert and matrix.

    x bf16 [T, D]; experts int64 [T, k]; weights fp32 [T, k]; gate_up [E, 2F, D]; down [E, D, F].
    Each expert's rows are padded to a multiple of ROWS (with token 0 at weight 0), because the matrix
    library generates code for every new shape, which costs more than the padding.
    """

    ROWS = 32

    @staticmethod
    def forward(ctx, x, experts, weights, gate_up, down):
        flat, top_k = experts.reshape(-1), experts.shape[1]
        order = flat.argsort()
        counts = torch.bincount(flat, minlength=gate_up.shape[0])
        padded = (counts + (_Experts.ROWS - 1)) // _Experts.ROWS * _Experts.ROWS
        shift = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
        row = torch.arange(len(flat)) + shift[flat[order]]      # padded row of each sorted pair
        token = torch.zeros(int(padded.sum()), dtype=torch.long)
        token[row] = order.div(top_k, rounding_mode="floor")
        w = torch.zeros(len(token))
        w[row] = weights.reshape(-1)[order]
        place = torch.empty_like(order)                         # padded row of each pair, unsorted
        place[order] = row
        spans, at = [], 0
        for n in padded.tolist():
            spans.append((at, at + n))
            at += n
        xs, gu16, d16 = x[token], gate_up.bfloat16(), down.bfloat16()
        both = torch.empty(len(token), gate_up.shape[1], dtype=torch.bfloat16)
        for e, (a, b) in enumerate(spans):
            if b > a:
                torch.mm(xs[a:b], gu16[e].T, out=both[a:b])
        act = _silu_mul(both)
        ys = torch.empty(len(token), x.shape[1], dtype=torch.bfloat16)
        for e, (a, b) in enumerate(spans):
            if b > a:
                torch.mm(act[a:b], d16[e].T, out=ys[a:b])
        out = torch.empty_like(x)
        call("combine", ys, w, place, out, len(x), top_k, x.shape[1])
        ctx.save_for_backward(xs, both, act, ys, w, token, place, gu16, d16)
        ctx.spans, ctx.top_k = spans, top_k
        return out

    @staticmethod
    def backward(ctx, dy):
        xs, both, act, ys, w, token, place, gu16, d16 = ctx.saved_tensors
        dys, d_weights = torch.empty_like(ys), torch.empty(len(ys))
        call("combine_backward", dy.contiguous(), ys, w, token, dys, d_weights, len(ys), ys.shape[1])
        d_act = torch.empty_like(act)
        d_down = torch.empty_like(d16)
        for e, (a, b) in enumerate(ctx.spans):
            if b > a:
                torch.mm(dys[a:b], d16[e], out=d_act[a:b])
                torch.mm(dys[a:b].T, act[a:b], out=d_down[e])
            else:
                d_down[e] = 0
        d_both = _silu_mul_backward(both, d_act)
        dxs = torch.empty_like(xs)
        d_gu = torch.empty_like(gu16)
        for e, (a, b) in enumerate(ctx.spans):
            if b > a:
                torch.mm(d_both[a:b], gu16[e], out=dxs[a:b])
                torch.mm(d_both[a:b].T, xs[a:b], out=d_gu[e])
            else:
                d_gu[e] = 0
        dx = torch.empty(dy.shape, dtype=torch.bfloat16)
        call("combine", dxs, None, place, dx, len(dx), ctx.top_k, dx.shape[1])
        return dx, None, d_weights[place].view(-1, ctx.top_k), d_gu.float(), d_down.float()


BLOCK = 256


def begins(segments):
    """First visible key of each query; segments [R, L], one number a conversation, contiguous in a row."""
    fresh = torch.ones_like(segments, dtype=torch.bool)
    fresh[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return (torch.arange(segments.shape[1]) * fresh).cummax(1).values


class _Attention(torch.autograd.Function):
    """From flat projections to flat mixed values: gathers rows, rotates, attends, scatters back.

    q [T, H, nope + rope]; compressed [T, rank + rope]; kv [T, H, nope + v]; bf16. Queries go in blocks, so
    that keys of the future beyond a block cost nothing.
    """

    @staticmethod
    def forward(ctx, q, compressed, kv, cos, sin, groups, scale, v):
        tokens, heads, d = q.shape
        rope = cos.shape[1] * 2
        sizes = (heads, d - rope, rope, v, compressed.shape[1] - rope, scale)
        mixed = torch.zeros(tokens, heads * v, dtype=torch.bfloat16)
        kept, spans = [], []
        for index, segments, begin in groups:
            rows, length = index.shape
            gq = torch.empty(rows, heads, length, d, dtype=torch.bfloat16)
            gk = torch.empty_like(gq)
            gv = torch.empty(rows, heads, length, v, dtype=torch.bfloat16)
            call("gather_heads", q, compressed, kv, cos, sin, index, gq, gk, gv, rows, length, *sizes)
            out, probabilities = torch.empty_like(gv), []
            for a in range(0, length, BLOCK):
                b = min(length, a + BLOCK)
                p = gq[:, :, a:b] @ gk[:, :, :b].transpose(2, 3)
                call("softmax_forward", p, begin, rows, heads, b - a, b, a, length)
                out[:, :, a:b] = p @ gv[:, :, :b]
                probabilities.append(p)
            call("move_outputs", mixed, out, index, segments, rows, length, heads, v, 0)
            spans.append((len(kept), len(probabilities)))
            kept += [gq, gk, gv, *probabilities]
        ctx.save_for_backward(cos, sin, *kept)
        ctx.spans, ctx.groups, ctx.sizes = spans, groups, sizes
        ctx.shapes = (q.shape, compressed.shape, kv.shape)
        return mixed

    @staticmethod
    def backward(ctx, d_mixed):
        cos, sin, *kept = ctx.saved_tensors
        heads, _, _, v, _, _ = ctx.sizes
        d_mixed = d_mixed.contiguous()
        dq, dc, dkv = (torch.zeros(s, dtype=torch.bfloat16) for s in ctx.shapes)
        for (first, blocks), (index, segments, begin) in zip(ctx.spans, ctx.groups):
            gq, gk, gv = kept[first:first + 3]
            rows, length = index.shape
            d_out = torch.empty_like(gv)
            call("move_outputs", d_mixed, d_out, index, segments, rows, length, heads, v, 1)
            dgq = torch.empty_like(gq)
            one = blocks == 1
            dgk = torch.zeros(gk.shape, dtype=torch.float32) if not one else None
            dgv = torch.zeros(gv.shape, dtype=torch.float32) if not one else None
            for block in range(blocks):
                a = block * BLOCK
                b, p = min(length, a + BLOCK), kept[first + 3 + block]
                do = d_out[:, :, a:b]
                ds = do @ gv[:, :, :b].transpose(2, 3)
                call("softmax_backward", ds, p, begin, rows, heads, b - a, b, a, length)
                dgq[:, :, a:b] = ds @ gk[:, :, :b]
                dk, dv = ds.transpose(2, 3) @ gq[:, :, a:b], p.transpose(2, 3) @ do
                if one:
                    dgk, dgv = dk, dv
                else:
                    dgk[:, :, :b] += dk
                    dgv[:, :, :b] += dv
            call("scatter_heads", dgq, dgk.bfloat16(), dgv.bfloat16(), cos, sin, index, segments, dq, dc, dkv,
                 rows, length, *ctx.sizes)
        return dq, dc, dkv, None, None, None, None, None


class _CrossEntropy(torch.autograd.Function):
    """sum(weights * loss) of bf16 logits [N, vocab], which are overwritten by their gradient."""

    @staticmethod
    def forward(ctx, logits, targets, weights):
        loss = torch.empty(len(logits))
        call("cross_entropy", logits, targets, weights, loss, len(logits), logits.shape[1])
        ctx.save_for_backward(logits)
        return (loss * weights).sum()

    @staticmethod
    def backward(ctx, d_loss):
        return ctx.saved_tensors[0], None, None      # the loss is the root: d_loss is 1


def cross_entropy(logits, targets, weights):
    """Weighted mean; destroys the logits."""
    return _CrossEntropy.apply(logits, targets, weights / weights.sum())


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

        ids, positions [T]; groups: list of (index, segments), both [R, L]: the flat tokens of each row, and
        a number per conversation in the row. Padding of a row has a segment of its own and any index, and
        comes last. wanted [N].
        """
        c, P = self.config, self.parameters_
        heads, nope = c["num_attention_heads"], c["qk_nope_head_dim"]
        rope, value, rank = c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        eps, count = c["rms_norm_eps"], len(ids)
        cos, sin = rope_tables(c, positions)
        scale = 1 / math.sqrt(nope + rope)
        groups = [(index, segments, begins(segments)) for index, segments in groups]
        x = F.embedding(ids, P["model.embed_tokens.weight"])
        for layer in range(c["num_hidden_layers"]):
            p = f"model.layers.{layer}."
            h = _RmsNorm.apply(x, P[p + "input_layernorm.weight"], eps)
            q = _Linear.apply(h, P[p + "self_attn.q_proj.weight"]).view(count, heads, nope + rope)
            compressed = _Linear.apply(h, P[p + "self_attn.kv_a_proj_with_mqa.weight"])
            latent = _RmsNorm.apply(compressed[:, :rank].float(), P[p + "self_attn.kv_a_layernorm.weight"], eps)
            kv = _Linear.apply(latent, P[p + "self_attn.kv_b_proj.weight"]).view(count, heads, -1)
            mixed = _Attention.apply(q, compressed, kv, cos, sin, groups, scale, value)
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

    @torch.no_grad()
    def import_tensors(self, tensors):
        """Takes the weights of an exported checkpoint: the inverse of `export_tensors`, but for rounding."""
        for name, parameter in self.parameters_.items():
            stem, _, last = name.rpartition(".")
            parts = {"gate_up": ["gate_proj", "up_proj"], "down": ["down_proj"]}.get(last)
            if not parts:
                parameter.copy_(tensors[name])
                continue
            stems = [f"{stem}.{e}" for e in range(len(parameter))] if parameter.dim() == 3 else [stem]
            matrices = [torch.cat([tensors[f"{s}.{part}.weight"] for part in parts]) for s in stems]
            parameter.copy_(torch.stack(matrices).view_as(parameter))
        for name, bias in self.biases.items():
            bias.copy_(tensors[name])

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
