"""Writes a trained state as a public checkpoint folder, with held-out sets, log and golden files."""
import json
from pathlib import Path

import torch

from . import encoding, evaluate, make_golden, mix, model as model_, safetensors, start
from .bpe import ADDED, Tokenizer


def write_json(path, value):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def blended(net, weights, folder, share):
    """Weights with a share of an exported folder's, which they were trained on from."""
    old = model_.Model(net.config)
    old.import_tensors(start.deepen(load_folder(folder)[1], net.config["num_hidden_layers"]))
    before = {**old.state_dict(), **old.biases}
    return {name: share * before[name] + (1 - share) * value for name, value in weights.items()}


def export(state_folder, to, golden=True, blend=0.0):
    """blend: share of the checkpoint that lies in `to` and is replaced."""
    to = Path(to)
    saved = torch.load(Path(state_folder) / "state.pt")
    tokenizer = Tokenizer.load(to / "tokenizer.json")
    net = model_.Model(model_.CONFIG)
    weights = saved["mean"] or {**saved["net"], **saved["biases"]}
    if blend:
        weights = blended(net, weights, to, blend)
    net.load_state_dict({name: weights[name] for name in saved["net"]})
    net.biases = {name: weights[name] for name in saved["biases"]}
    safetensors.save(to / "model.safetensors", net.export_tensors())
    bos, eos = tokenizer.special[encoding.BOS], tokenizer.special[encoding.EOS]
    pad = tokenizer.special[ADDED[2][0]]
    write_json(to / "config.json", {**model_.CONFIG, "bos_token_id": bos, "eos_token_id": eos,
                                    "pad_token_id": pad})
    write_json(to / "generation_config.json", {"_from_model_config": True, "bos_token_id": bos,
                                               "eos_token_id": eos, "do_sample": False})
    write_json(to / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length":
        model_.CONFIG["max_position_embeddings"], "add_bos_token": False, "add_eos_token": False,
        "bos_token": encoding.BOS, "eos_token": encoding.EOS, "pad_token": ADDED[2][0],
        "clean_up_tokenization_spaces": False})
    state = saved["state"]
    write_json(to / "training_log.json", {
        "steps": state["step"], "tokens": state["tokens"], "minutes": round((state["seconds"] - state["skipped"]) / 60, 1),
        "curve": state["curve"]})
    (to / "heldout").mkdir(exist_ok=True)
    for skill in mix.HELD_OUT:
        with open(to / "heldout" / f"{skill}.jsonl", "w", encoding="utf-8") as file:
            for index, item in enumerate(mix.held_out(skill)):
                file.write(json.dumps(evaluate.held_out_line(item, index), ensure_ascii=False) + "\n")
    if golden:
        make_golden.make(to, make_golden.FOLDER)


def load_folder(folder):
    """(config, fp32 tensors, tokenizer) of an exported folder."""
    folder = Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = {k: v.float() for k, v in safetensors.load(folder / "model.safetensors").items()}
    return config, tensors, Tokenizer.load(folder / "tokenizer.json")


def evaluate_folder(folder, skills=None, misses=0):
    config, tensors, tokenizer = load_folder(folder)
    for path in sorted((Path(folder) / "heldout").glob("*.jsonl")):
        if skills and path.stem not in skills:
            continue
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        shown = [0]

        def on_miss(line, text):
            shown[0] += 1
            if shown[0] <= misses:
                print(f"    {line['id']}: {line['messages'][-1]['content'][-100:]!r} -> {text!r}, "
                      f"not {line['expect']}", flush=True)

        accuracy = evaluate.greedy_accuracy(config, tensors, tokenizer, lines, on_miss)
        print(f"{path.stem:12s} {len(lines):4d} items  {accuracy:6.1f} %", flush=True)
