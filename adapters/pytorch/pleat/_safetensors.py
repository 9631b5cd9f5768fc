"""Under `pleat estimate`: files of safetensors, which it reads into the GPU's memory and writes from it by addresses
that are not there."""

import importlib.util

from . import _stderr

NOTICE = "pleat estimate: safetensors: tensors have no contents here: nothing is written"


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


def stand(torch, fake_type):
    if importlib.util.find_spec("safetensors") is None:
        return
    import safetensors
    import safetensors.torch

    safe_open, save_file, said = safetensors.safe_open, safetensors.torch.save_file, []

    def open_on_host(filename, framework, device="cpu", **named):
        on_host = framework not in ("pt", "torch", "pytorch") or torch.device(device).type == "cpu"
        return safe_open(filename, framework, device=device, **named) if on_host else (
            Opened(safe_open(filename, framework, device="cpu", **named), torch.device(device)))

    def save_without(tensors, *arguments, **named):
        if not any(isinstance(tensor, fake_type) for tensor in tensors.values()):
            return save_file(tensors, *arguments, **named)
        if not said:
            said.append(True)
            _stderr.say(NOTICE)
        return None

    safetensors.safe_open = safetensors.torch.safe_open = open_on_host
    safetensors.torch.save_file = save_without
