"""Reads and writes .safetensors files: u64 header length, JSON header, little-endian tensor bytes."""
import json
import struct

import torch

_TYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_NAMES = {v: k for k, v in _TYPES.items()}


def save(path, tensors):
    """tensors: {name: CPU tensor}, bfloat16 or float32; written in the order of names, 8-byte aligned."""
    header, offset, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name in sorted(tensors):
        tensor = tensors[name].detach().contiguous()
        blob = tensor.reshape(-1).view(torch.int16 if tensor.dtype == torch.bfloat16
                                       else torch.int32).numpy().tobytes()
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for blob in blobs:
            file.write(blob)


def load(path):
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    header, base, out = json.loads(data[8:8 + length]), 8 + length, {}
    for name, entry in header.items():
        if name != "__metadata__":
            a, b = entry["data_offsets"]
            kind = _TYPES[entry["dtype"]]
            raw = torch.frombuffer(bytearray(data[base + a:base + b]),
                                   dtype=torch.int16 if kind == torch.bfloat16 else torch.int32)
            out[name] = raw.view(kind).reshape(entry["shape"])
    return out
