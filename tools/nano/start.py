"""Initial weights that already copy: an induction circuit built by hand, which training then refines.

Copying "A B ... A" -> "B" needs two heads in a row and a way from a token's embedding to its own logit. From
random weights a model of this size finds that for the ten digits within minutes, but for a thousand words only
after millions of tokens, because every word has to be found on its own. Here all words start with it:

- Residual stream: an orthonormal basis split into `common` (1), `trace` (32), `out1`, `out2` (32 each) and codes.
  The embedding of a token is a random code in three parts (match 32, value1 32, value2 31) plus `common`. Spellings of one
  word (" Oslo", "Oslo") share most of their code.
- Layer 0 head 0 attends to the previous token and writes its match code to `trace`.
- Layers 1 and 2 head 0 look for keys whose trace is the match code of the current token, and write the value
  code found there to `out1` and `out2`.
- The output head of a token reads its value codes from there.

Everything else starts random, with small output matrices, so that the codes survive the first layers.
"""
import math

import torch

COMMON, SHARED = 0.6, 0.75      # length of the common direction; cosine between spellings of a word
SIZE = 2.0                      # length of an embedding's code
BACK, MATCH = 10.0, 12.0        # sharpness of the heads
LOGIT = 11.0                    # logit of a token that both heads copy


def _unit(x, dim=-1):
    return x / x.norm(dim=dim, keepdim=True)


def families(tokenizer):
    """A number per id, equal for the spellings of one word."""
    numbers, out = {}, []
    for token in range(tokenizer.size):
        text = tokenizer.decode([token])
        word = text.strip().lower()
        key = word if word.isalpha() and word.isascii() and len(word) > 1 else token
        out.append(numbers.setdefault(key, len(numbers)))
    return torch.tensor(out)


def deepen(tensors, layers):
    """A checkpoint's tensors with its last layer repeated up to `layers`, each copy adding nothing at first."""
    number = lambda name: int(name.split(".")[2]) if name.startswith("model.layers.") else -1
    out, last = dict(tensors), max(map(number, tensors))
    for layer in range(last + 1, layers):
        for name, tensor in tensors.items():
            if number(name) == last:
                quiet = name.endswith(("o_proj.weight", "down_proj.weight"))
                out[name.replace(f".{last}.", f".{layer}.", 1)] = torch.zeros_like(tensor) if quiet else tensor.clone()
    return out


@torch.no_grad()
def build(model, tokenizer, generator):
    """Overwrites the initial weights of a model of four heads or so and 192 hidden dimensions or more."""
    c, P = model.config, model.parameters_
    d, nope, rope, v = c["hidden_size"], c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    rank, half = c["kv_lora_rank"], c["kv_lora_rank"] // 2
    assert nope == v == half and d >= 6 * half
    random = lambda *shape: torch.randn(*shape, generator=generator)
    basis = torch.linalg.qr(random(d, d))[0].T                       # rows
    common, trace, out1, out2 = basis[0], basis[1:1 + half], basis[1 + half:1 + 2 * half], \
        basis[1 + 2 * half:1 + 3 * half]
    spaces = basis[1 + 3 * half:1 + 4 * half], basis[1 + 4 * half:1 + 5 * half], basis[1 + 5 * half:1 + 6 * half]
    family = families(tokenizer)
    codes = []
    for space in spaces:
        shared = _unit(random(int(family.max()) + 1, len(space)))[family]
        own = _unit(random(len(family), len(space)))
        codes.append(_unit(math.sqrt(SHARED) * shared + math.sqrt(1 - SHARED) * own) / math.sqrt(3))
    P["model.embed_tokens.weight"].copy_(
        SIZE * (sum(code @ space for code, space in zip(codes, spaces)) + COMMON * common))
    for name, parameter in P.items():                                # quiet outputs
        if name.endswith(".down"):
            parameter *= 0.4
    layer = "model.layers.0.self_attn."
    key, query = P[layer + "kv_a_proj_with_mqa.weight"], P[layer + "q_proj.weight"]
    kv, output = P[layer + "kv_b_proj.weight"], P[layer + "o_proj.weight"]
    # Head 0 of layer 0: the product of query and key is strength * sum of cos(frequency * (distance - 1)).
    along = math.sqrt(d) * COMMON / math.sqrt(1 + COMMON * COMMON)
    size = math.sqrt(BACK * math.sqrt(nope + rope)) / along
    for pair in range(4):
        frequency = c["rope_theta"] ** (-2 * pair / rope)
        key[rank + 2 * pair], key[rank + 2 * pair + 1] = size * common, 0
        query[nope + 2 * pair] = size * math.cos(frequency) * common
        query[nope + 2 * pair + 1] = -size * math.sin(frequency) * common
    query[:nope] *= 0.1
    key[:half] = spaces[0]
    kv[nope:nope + v] = 0
    kv[nope:nope + v, :half] = torch.eye(half) * 0.5
    output[:, :v] = trace.T * (SIZE / (0.5 * 7.3))
    # Heads 0 of layers 1 and 2. A normed code or trace is 5.2 and 8.9 long, half a normed latent 5.7.
    for index, (space, out) in enumerate(((spaces[1], out1), (spaces[2], out2)), 1):
        layer = f"model.layers.{index}.self_attn."
        key, query = P[layer + "kv_a_proj_with_mqa.weight"], P[layer + "q_proj.weight"]
        kv, output = P[layer + "kv_b_proj.weight"], P[layer + "o_proj.weight"]
        key[:half] = trace
        key[half:half + len(space)] = space * 1.7
        gain = math.sqrt(MATCH * math.sqrt(nope + rope) / (5.7 * 5.2))
        kv[:nope + v] = 0
        kv[:nope, :half] = torch.eye(half) * gain
        kv[nope:nope + v, half:] = torch.eye(half) * 0.7
        query[:nope] = spaces[0] * gain
        query[nope:nope + rope] *= 0.1
        output[:, :out.shape[0]] = out.T * 0.75
    head = P["lm_head.weight"]
    head *= 0.5
    scale = LOGIT / 2 / 7.8 * math.sqrt(3)
    head += scale * (codes[1] @ out1[:codes[1].shape[1]] + codes[2] @ out2[:codes[2].shape[1]])
