"""Muon for two-dimensional weights, AdamW for the rest, as in the measured recipe."""
import torch


def orthogonalised(batch):
    """Five Newton-Schulz steps on [B, m, n] in bf16: the nearest semi-orthogonal matrices, roughly."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = batch.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.float().norm(dim=(1, 2), keepdim=True).bfloat16() + 1e-7)
    for _ in range(5):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return (x.transpose(1, 2) if tall else x).float()


class Muon:
    """Equal shapes share one batch; `gate_up` matrices count as two matrices."""

    def __init__(self, named, momentum=0.95):
        self.momentum, self.named, self.groups = momentum, dict(named), {}
        self.buffers = {n: torch.zeros_like(p) for n, p in self.named.items()}
        for name, p in self.named.items():
            halves = 2 if name.endswith("gate_up") else 1
            shape = (p.shape[0] // halves, p.shape[1])
            self.groups.setdefault(shape, []).append((name, halves))

    @torch.no_grad()
    def step(self, lr):
        for (rows, columns), members in self.groups.items():
            updates = []
            for name, halves in members:
                gradient, buffer = self.named[name].grad, self.buffers[name]
                buffer.mul_(self.momentum).add_(gradient)
                updates.append(gradient.add(buffer, alpha=self.momentum).view(halves, rows, columns))
            moves = orthogonalised(torch.cat(updates)) * max(1.0, rows / columns) ** 0.5
            at = 0
            for name, halves in members:
                p = self.named[name]
                p.sub_(moves[at:at + halves].reshape(p.shape), alpha=lr)
                at += halves


def build(model, part=0, parts=1):
    """(Muon, AdamW) over one of `parts` shares of a model's parameters of about equal cost."""
    muon, decayed, plain = {}, [], []
    cost = [0] * parts
    order = sorted(model.parameters_.items(), key=lambda item: -item[1].numel())
    for name, p in order:
        matrix = p.dim() == 2 and ("self_attn" in name or name.endswith(("gate_up", "down")))
        share = min(range(parts), key=lambda i: cost[i])
        cost[share] += p.numel() * (20 if matrix else 3)
        if share != part:
            continue
        if matrix:
            muon[name] = p
        elif p.dim() == 1:
            plain.append(p)
        else:
            decayed.append(p)
    adam = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.05},
                              {"params": plain, "weight_decay": 0.0}],
                             lr=3e-3, betas=(0.9, 0.95), eps=1e-9)
    return Muon(muon), adam
