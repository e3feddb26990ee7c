"""Accuracy on held-out items: a quick teacher-forced check while training, and greedy decoding."""
import json

import torch

from . import batches, encoding, mix, model as model_


@torch.no_grad()
def teacher_forced(model, tokenizer, limit=50, names=None):
    """{skill: share of items whose every answer token, EOS included, is the most likely one}.

    With the right answer as prefix this equals greedy exact match, except that a thinking answer must
    also match in its reasoning, and that another spelling by tokens counts as wrong.
    """
    out = {}
    for skill in names or mix.HELD_OUT:
        rows = []
        for item in mix.held_out(skill)[:min(limit, 20) if skill.endswith("4k") else limit]:
            ids, _ = encoding.encode(tokenizer, item)
            head, _ = encoding.encode(tokenizer, {**item, "messages": item["messages"][:-1]}, True)
            assert ids[:len(head)] == head, "an answer must follow its generation header"
            rows.append((ids, len(head), list(range(len(ids)))))
        right = 0
        for a in range(0, len(rows), 10):
            part = rows[a:a + 10]
            starts, ids, positions, groups = batches.pack(part)
            wanted, ends = [], []
            for at, (row, head, _) in zip(starts, part):
                wanted += range(at + head - 1, at + len(row) - 1)
                ends.append(len(wanted))
            wanted = torch.tensor(wanted)
            same = model(ids, positions, groups, wanted).argmax(-1) == ids[wanted + 1]
            begin = 0
            for end in ends:
                right += bool(same[begin:end].all())
                begin = end
        out[skill] = round(100 * right / len(rows), 1)
    return out


def expectation(item):
    """The expected answer in the form of a held-out file."""
    last = item["messages"][-1]
    if last.get("tool_calls"):
        return {"tool_calls": [{"name": c["function"]["name"],
                                "arguments": json.loads(c["function"]["arguments"])}
                               for c in last["tool_calls"]]}
    return {"content": last["content"]}


def held_out_line(item, index):
    """A line of models/nano/heldout/<skill>.jsonl."""
    line = {"skill": item["skill"], "id": f"{item['skill']}-{index:03d}",
            "messages": [{k: v for k, v in m.items() if k != "reasoning_content"}
                         for m in item["messages"][:-1]]}
    if item.get("tools"):
        line["tools"] = item["tools"]
    line["thinking"] = item["thinking"]
    line["expect"] = expectation(item)
    return line


@torch.no_grad()
def greedy(config, tensors, tokenizer, ids, limit=200):
    """Greedy continuation of a prompt with the fp32 reference; token ids without EOS."""
    cache, out, start = [], [], 0
    eos = tokenizer.special[encoding.EOS]
    block = ids
    while len(out) < limit and start + len(block) <= config["max_position_embeddings"]:
        logits = None
        for a in range(0, len(block), 512):
            logits = model_.reference(config, tensors, block[a:a + 512], cache=cache, start=start)
            start += len(block[a:a + 512])
        token = int(logits[-1].argmax())
        if token == eos:
            break
        out.append(token)
        block = [token]
    return out


def greedy_accuracy(config, tensors, tokenizer, lines, on_miss=None):
    """Share of held-out lines answered exactly."""
    right = 0
    for line in lines:
        ids, _ = encoding.encode(tokenizer, line, generate=True)
        text = tokenizer.decode(greedy(config, tensors, tokenizer, ids))
        answer = encoding.parse(text, line["thinking"])
        if answer == line["expect"]:
            right += 1
        elif on_miss:
            on_miss(line, text)
    return 100 * right / max(1, len(lines))
