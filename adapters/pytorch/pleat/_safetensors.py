"""Under `pleat estimate`: files of safetensors, which it reads into the GPU's memory and writes from it by addresses
that are not there. What is written is of the right types and sizes, and zero."""

import importlib.util
import json
import re
import struct

# What a file calls what is before the bits of torch's types; others by the same name in capitals.
KINDS = {"float": "F", "bfloat": "BF", "complex": "C", "int": "I", "uint": "U"}


class Slice:
    def __init__(self, part, device):
        self.part, self.device = part, device

    def __getitem__(self, index):
        return self.part[index].to(self.device)

    def __getattr__(self, name):
        return getattr(self.part, name)


class Opened:
    """A file that is read on the host, whose tensors go where they were asked for."""

    def __init__(self, file, device):
        self.file, self.device = file, device

    def __enter__(self):
        self.file.__enter__()
        return self

    def __exit__(self, *error):
        return self.file.__exit__(*error)

    def __getattr__(self, name):
        return getattr(self.file, name)

    def get_tensor(self, name):
        return self.file.get_tensor(name).to(self.device)

    def get_tensors(self):
        return {name: self.get_tensor(name) for name in self.file.keys()}

    def get_slice(self, name):
        return Slice(self.file.get_slice(name), self.device)


def code(dtype):
    """What a file calls a type."""
    kind, bits, form = re.fullmatch(r"torch\.([a-z]+)(\d*)(.*?)(?:fnu?)?", str(dtype)).groups()
    return KINDS.get(kind, kind.upper()) + bits + form.upper()


def head(tensors, metadata):
    """A file's beginning, and how many bytes are behind it."""
    parts, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        parts[name] = {"dtype": code(tensor.dtype), "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(parts).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, end


def stand(torch, fake_type, made):
    if importlib.util.find_spec("safetensors") is None:
        return
    import safetensors
    import safetensors.torch

    safe_open, save, save_file = safetensors.safe_open, safetensors.torch.save, safetensors.torch.save_file

    def are_there(tensors):
        return not any(isinstance(tensor, fake_type) for tensor in tensors.values())

    def open_on_host(filename, framework, device="cpu", **named):
        on_host = framework not in ("pt", "torch", "pytorch") or torch.device(device).type == "cpu"
        return safe_open(filename, framework, device=device, **named) if on_host else (
            Opened(safe_open(filename, framework, device="cpu", **named), torch.device(device)))

    def save_without(tensors, filename, metadata=None):
        if are_there(tensors):
            return save_file(tensors, filename, metadata)
        made.tell()
        if made.may_write(filename):
            made.write(filename, *head(tensors, metadata))
        return None

    def bytes_without(tensors, metadata=None):
        if are_there(tensors):
            return save(tensors, metadata)
        begin, zeros = head(tensors, metadata)
        return begin + bytes(zeros)

    safetensors.safe_open = safetensors.torch.safe_open = open_on_host
    safetensors.torch.save, safetensors.torch.save_file = bytes_without, save_without
