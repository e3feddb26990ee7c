#!/usr/bin/python3
"""Trains models/nano, a tiny DeepSeek-V3-style chat model, on two CPU cores.

Needs Debian's python3-torch, libopenblas0-pthread and gcc (for a few fused kernels). One run of 60-110
minutes from nothing:

    tools/train_nano.py train --out DIR --minutes 92
    tools/train_nano.py export --out DIR     # models/nano with held-out sets, and tests/golden/nano
    tools/train_nano.py evaluate             # greedy accuracy on the held-out sets

`train` writes DIR/state.pt every few minutes and continues from it with --resume; training time counts
only while training, so an interrupted run loses nothing but the steps after the last save.
"""
import os
import sys

# These are read when the libraries load: no spinning next to busy neighbours, no page faults per tensor.
_SETTINGS = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0",
             "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_ARENA_MAX": "1",
             "MALLOC_TOP_PAD_": "268435456", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "8192",
             "OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "SKYLAKEX"}
if any(os.environ.get(k) != v for k, v in _SETTINGS.items()):
    os.environ.update(_SETTINGS)
    os.execv(sys.executable, [sys.executable] + sys.argv)

import argparse
import json
import random
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch

from nano import batches, evaluate, export, make_golden, model as model_, optimizer, start, vocabulary
from nano.bpe import Tokenizer

MODELS = Path(__file__).resolve().parent.parent / "models" / "nano"
WARM_UP_STEPS, HIGH, FALL, START_DECAY, FINAL_LR = 100, 0.40, 0.50, 0.28, 0.02
MEAN_FROM = 0.85        # the exported weights are the mean of those saved from here on
FINISH_RATE = 0.2       # of both rates: where training on from a checkpoint begins
MUON_LR, ADAM_LR = 0.02, 3e-3


def learning_rate(number, progress, finish):
    """Warm-up over the first steps of an optimiser, constant for HIGH of the time, then at START_DECAY, from FALL
    on linearly down: the factor on both rates. `finish`: linearly down from FINISH_RATE all the way."""
    warm = min(1.0, (number + 1) / WARM_UP_STEPS)
    if finish:
        return warm * (FINAL_LR + (FINISH_RATE - FINAL_LR) * max(0.0, 1 - progress))
    if progress < HIGH:
        return warm
    return warm * (FINAL_LR + (START_DECAY - FINAL_LR) * min(1.0, max(0.0, 1 - progress) / (1 - FALL)))


def balance(net, loads, progress):
    """Moves each selection bias against its expert's load; rests at the end of training."""
    if progress > 0.9:
        return
    for name, load in loads.items():
        net.biases[name] += 0.002 * torch.sign(load.mean() - load)
        net.biases[name] -= net.biases[name].mean()


class Shared:
    """Memory that the worker processes share: parameters, one gradient per worker, expert loads, barriers.

    Each worker computes the gradient of its own part of the batch on one thread; then each updates its part
    of the parameters from the mean gradient. Two barriers a step instead of one in every matrix product
    makes the best of cores that other programs use too.
    """

    def __init__(self, net, workers):
        self.workers = workers
        for p in net.parameters():
            p.data.share_memory_()
        size = sum(p.numel() for p in net.parameters())
        self.gradients = torch.zeros(workers, size).share_memory_()
        self.loads = {n: torch.zeros(workers, len(b)).share_memory_() for n, b in net.biases.items()}
        for bias in net.biases.values():
            bias.share_memory_()
        self.losses = torch.zeros(workers).share_memory_()
        self.weights = torch.zeros(workers).share_memory_()      # loss weight of each part of the batch
        self.command = torch.zeros(8, dtype=torch.float64).share_memory_()
        self.barrier = torch.multiprocessing.get_context("fork").Barrier(workers)


def work(rank, net, muon, adam, shared, tokenizer, rng, command, batch):
    """One step of one worker. command: (step number, progress, rate factor, .., .., finishing)."""
    number, progress, factor = int(command[0]), command[1], command[2]
    stage = batches.FINISH if command[5] else batches.stage(progress)
    data = batches.step(rng, tokenizer, stage, number, batch // shared.workers)
    ids, positions, groups, wanted, targets, weights = data
    loss = model_.cross_entropy(net(ids, positions, groups, wanted), targets, weights)
    loss.backward()
    weight = float(weights.sum())
    shared.losses[rank], shared.weights[rank] = loss.item(), weight
    named, mine, at = net.parameters_, shared.gradients[rank], 0
    for p in named.values():
        view = mine[at:at + p.numel()].view(p.shape)
        torch.mul(p.grad, weight, out=view) if p.grad is not None else view.zero_()
        at += p.numel()
    for name, loads in net.loads.items():
        shared.loads[name][rank] = loads.float()
    shared.barrier.wait()
    mean = shared.gradients.sum(0).div_(shared.weights.sum())
    scale = min(1.0, 1.0 / (mean.norm().item() + 1e-6))
    mean.mul_(scale)
    at = 0
    for p in named.values():
        p.grad = mean[at:at + p.numel()].view(p.shape)
        at += p.numel()
    muon.step(MUON_LR * factor)
    for group in adam.param_groups:
        group["lr"] = ADAM_LR * factor
    adam.step()
    if rank == 0:
        balance(net, {n: l.sum(0) for n, l in shared.loads.items()}, progress)
    for p in named.values():
        p.grad = None
    shared.barrier.wait()
    return len(ids)


def helper(rank, net, optimizers, shared, tokenizer, args, seed):
    torch.set_num_threads(1)
    rng = random.Random(seed)
    try:
        while True:
            shared.barrier.wait()
            command = shared.command.tolist()
            if command[3]:
                save_part(args.out, rank, *optimizers)
                shared.barrier.wait()
            elif command[4]:
                return
            else:
                work(rank, net, *optimizers, shared, tokenizer, rng, command, args.batch)
    except BaseException:
        shared.barrier.abort()
        raise


def save_part(out, rank, muon, adam):
    torch.save({"muon": muon.buffers, "adam": adam.state_dict()}, out / f"optimizer{rank}.tmp")


def train(args):
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.load(args.tokenizer)
    net = model_.Model(model_.CONFIG, torch.Generator().manual_seed(args.seed))
    start.build(net, tokenizer, torch.Generator().manual_seed(args.seed))
    optimizers = [optimizer.build(net, rank, args.threads) for rank in range(args.threads)]
    mean, means = {}, 0
    state = {"step": 0, "first_step": 0, "tokens": 0, "seconds": 0.0, "skipped": 0.0, "finish": 0, "curve": []}
    if args.resume:
        saved = torch.load(args.out / "state.pt")
        state = saved["state"]
        net.load_state_dict(saved["net"])
        net.biases = saved["biases"]
        mean, means = saved["mean"], saved["means"]
        for (muon, adam), part in zip(optimizers, saved["optimizers"]):
            muon.buffers = part["muon"]
            adam.load_state_dict(part["adam"])
    elif args.checkpoint:
        net.import_tensors(start.deepen(export.load_folder(args.checkpoint)[1], model_.CONFIG["num_hidden_layers"]))
        log = json.loads((args.checkpoint / "training_log.json").read_text(encoding="utf-8"))
        state.update(step=log["steps"], first_step=log["steps"], tokens=log["tokens"], curve=log["curve"], finish=1)
        state["skipped"] = -60 * log["minutes"]      # trained before this schedule began
    shared = Shared(net, args.threads)
    context = torch.multiprocessing.get_context("fork")
    rng = random.Random(f"{args.seed}/{state['step']}/0")
    helpers = [context.Process(target=helper, daemon=True, args=(
        rank, net, optimizers[rank], shared, tokenizer, args, f"{args.seed}/{state['step']}/{rank}"))
        for rank in range(1, args.threads)]
    for process in helpers:
        process.start()
    total = 60 * args.minutes        # the schedule follows training time, not steps
    saved_at = evaluated_at = state["seconds"]
    losses, window = [], (state["seconds"], state["tokens"])

    def order(**fields):
        keys = ("step", "progress", "factor", "save", "stop", "finish")
        shared.command[:6] = torch.tensor([float(fields.get(k, 0)) for k in keys], dtype=torch.float64)
        shared.barrier.wait()

    def save():
        nonlocal means
        if state["seconds"] >= MEAN_FROM * total:
            means += 1
            for name, value in {**net.state_dict(), **net.biases}.items():
                mean[name] = mean[name] + (value - mean[name]) / means if name in mean else value.clone()
        order(save=1)
        save_part(args.out, 0, *optimizers[0])
        shared.barrier.wait()
        parts = [torch.load(args.out / f"optimizer{r}.tmp") for r in range(args.threads)]
        torch.save({"state": state, "net": net.state_dict(), "biases": net.biases, "optimizers": parts,
                    "mean": mean, "means": means}, args.out / "state.tmp")
        (args.out / "state.tmp").replace(args.out / "state.pt")

    while state["seconds"] < total:
        began = time.monotonic()
        progress = state["seconds"] / total
        factor = learning_rate(state["step"] - state["first_step"], progress, state["finish"])
        order(step=state["step"], progress=progress, factor=factor, finish=state["finish"])
        tokens = work(0, net, *optimizers[0], shared, tokenizer, rng, shared.command.tolist(), args.batch)
        losses.append(float((shared.losses * shared.weights).sum() / shared.weights.sum()))
        state["step"] += 1
        state["tokens"] += tokens * args.threads
        state["seconds"] += time.monotonic() - began
        if state["step"] % 50 == 0:
            seconds, tokens = state["seconds"] - window[0], state["tokens"] - window[1]
            window = (state["seconds"], state["tokens"])
            print(f"{state['seconds'] / 60:6.1f} min  step {state['step']:5d}  "
                  f"{state['tokens'] / 1e6:6.2f} M tokens  loss {sum(losses) / len(losses):.4f}  "
                  f"lr {factor:.3f}  {tokens / seconds:6.0f} tok/s", flush=True)
            losses = []
            if state["step"] <= 600 and state["step"] % 100 == 0:
                print("       ", json.dumps(evaluate.teacher_forced(
                    net, tokenizer, 40, ["copy", "recall", "memory", "json"])), flush=True)
        if state["seconds"] - evaluated_at > 60 * args.evaluate_every or state["seconds"] >= total:
            evaluated_at = state["seconds"]
            scores = evaluate.teacher_forced(net, tokenizer)
            state["curve"].append({"minutes": round((state["seconds"] - state["skipped"]) / 60, 1), "step": state["step"],
                                   "tokens": state["tokens"], "accuracy": scores})
            print("       ", json.dumps(scores), flush=True)
        if state["seconds"] - saved_at > 60 * args.save_every:
            saved_at = state["seconds"]
            save()
    save()
    order(stop=1)
    for process in helpers:
        process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("tokenizer", help="learn the vocabulary and write tokenizer.json (changes all ids)")
    p.add_argument("--to", type=Path, default=MODELS / "tokenizer.json")
    p = commands.add_parser("train", help="train, or continue training")
    p.add_argument("--out", type=Path, required=True, help="folder of state.pt, outside the repository")
    p.add_argument("--minutes", type=float, default=100, help="training time of the whole schedule")
    p.add_argument("--resume", action="store_true", help="continue from state.pt in --out")
    p.add_argument("--checkpoint", type=Path, help="train on from an exported folder for --minutes, at a low and "
                   "falling rate on the finishing mix; without it, from nothing")
    p.add_argument("--threads", type=int, default=2, help="worker processes of one thread each")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--batch", type=int, default=3072, help="tokens of short conversations a step")
    p.add_argument("--evaluate-every", type=float, default=5, help="minutes between checks on held-out items")
    p.add_argument("--save-every", type=float, default=3, help="minutes between saves")
    p.add_argument("--tokenizer", type=Path, default=MODELS / "tokenizer.json")
    p = commands.add_parser("export", help="write the checkpoint, held-out sets, log and golden files")
    p.add_argument("--out", type=Path, required=True, help="folder of state.pt")
    p.add_argument("--to", type=Path, default=MODELS)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--skip-golden", action="store_true")
    p.add_argument("--blend", type=float, default=0.0, help="share of the checkpoint in --to that is mixed in, after "
                   "training on from it")
    p = commands.add_parser("golden", help="make the golden files of an exported folder again")
    p.add_argument("--model", type=Path, default=MODELS)
    p.add_argument("--threads", type=int, default=2)
    p = commands.add_parser("evaluate", help="greedy accuracy of an exported folder on its held-out sets")
    p.add_argument("--model", type=Path, default=MODELS)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--skills", nargs="*", help="only these")
    p.add_argument("--misses", type=int, default=0, help="print so many wrong answers a skill")
    args = parser.parse_args()
    if args.command == "tokenizer":
        vocabulary.build(args.to)
    elif args.command == "train":
        train(args)
    elif args.command == "export":
        torch.set_num_threads(args.threads)
        export.export(args.out, args.to, golden=not args.skip_golden, blend=args.blend)
    elif args.command == "golden":
        torch.set_num_threads(args.threads)
        make_golden.make(args.model, make_golden.FOLDER)
    else:
        torch.set_num_threads(args.threads)
        export.evaluate_folder(args.model, args.skills, args.misses)


if __name__ == "__main__":
    main()
