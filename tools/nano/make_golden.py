"""Golden parity data of an exported checkpoint: logits and prompts that an engine has to reproduce.

The arithmetic is fp32 on the bf16 weights widened to fp32; the format is in tests/golden/nano/README.md.
"""
import hashlib
import json
import random
from pathlib import Path

import numpy
import torch

from . import encoding, evaluate, mix, model as model_

FOLDER = Path(__file__).resolve().parent.parent.parent / "tests" / "golden" / "nano"
LENGTHS = [1, 7, 65, 300, 2000]
SAMPLED, PER_SEQUENCE = 64, 8
PROMPTS_PER_SKILL = 2


def sequences(tokenizer):
    """Token sequences of the wanted lengths, from held-out conversations."""
    pool = {skill: encoding.encode(tokenizer, mix.held_out(skill)[0])[0] for skill in mix.HELD_OUT}
    sources = ["recall_4k", "tool", "memory", "recall"]
    out = []
    for length in LENGTHS:
        fitting = [pool[s] for s in reversed(sources) if len(pool[s]) >= length]
        out.append(fitting[0][:length])
    return out


def make(folder, to):
    from .export import load_folder      # export imports this module
    folder, to = Path(folder), Path(to)
    to.mkdir(parents=True, exist_ok=True)
    config, tensors, tokenizer = load_folder(folder)
    rng = random.Random(2026)
    blob, entries = [], []

    def put(values):
        offset = sum(len(b) for b in blob)
        blob.append(numpy.asarray(values, dtype="<f4").reshape(-1))
        return offset

    with torch.no_grad():
        for ids in sequences(tokenizer):
            count = len(ids)
            positions = sorted({0, count - 1} | set(rng.sample(range(count), min(count, PER_SEQUENCE))))
            full = sorted({0, count // 2, count - 1})
            sampled = sorted(rng.sample(range(config["vocab_size"]), SAMPLED))
            entry = {"ids": ids, "positions": positions, "indices": sampled, "full_positions": full,
                     "variants": {}}
            for variant in ("kv_fp32", "kv_bf16"):
                logits = model_.reference(config, tensors, ids, kv_bf16=variant == "kv_bf16")
                chosen = logits[positions]
                entry["variants"][variant] = {
                    "sampled": put(chosen[:, sampled]), "max": put(chosen.max(-1).values),
                    "logsumexp": put(chosen.double().logsumexp(-1)), "full": put(logits[full]),
                    "argmax": chosen.argmax(-1).tolist()}
            entries.append(entry)
    data = numpy.concatenate(blob).tobytes()
    (to / "logits.bin").write_bytes(data)
    checkpoint = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    with open(to / "logits.json", "w", encoding="utf-8") as file:
        json.dump({"checkpoint_sha256": checkpoint, "floats": len(data) // 4, "sequences": entries}, file)
        file.write("\n")
    with open(to / "prompts.jsonl", "w", encoding="utf-8") as file:
        for skill in mix.HELD_OUT:
            for index, item in enumerate(mix.held_out(skill)[:1 if skill.endswith("4k") else PROMPTS_PER_SKILL]):
                line = evaluate.held_out_line(item, index)
                ids, _ = encoding.encode(tokenizer, line, generate=True)
                greedy = evaluate.greedy(config, tensors, tokenizer, ids)
                file.write(json.dumps({"id": line["id"], "ids": ids, "greedy": greedy,
                                       "text": tokenizer.decode(greedy)}, ensure_ascii=False) + "\n")
