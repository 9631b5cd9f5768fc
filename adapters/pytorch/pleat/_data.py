"""Under `pleat estimate`: `tensor.data = made`, and modules that are moved, where one of the two has no contents.

torch has none of this for its fake tensors: it gives a module other parameters instead, which an optimizer that was
made before does not know. Here a parameter stays the one that it is, as on a GPU.
"""

from ._contents import Refused
from ._errors import Refusal


def become(torch, tensor, made):
    """Makes a tensor of the host another one, without contents; who has the tensor has that one. RuntimeError: a graph
    has what it was."""
    if tensor._use_count() > 1 or not tensor.is_leaf:
        raise Refusal("a graph of autograd has this tensor of the host: move it before it is used")
    if isinstance(tensor, torch.nn.Parameter):
        made = torch.nn.Parameter(made, tensor.requires_grad)
    else:
        made = made.detach().requires_grad_(tensor.requires_grad)
    vars(made).update(vars(tensor))  # what the program has noted of it
    for name in ("__class__", "__dict__"):
        kept = getattr(tensor, name)
        setattr(tensor, name, getattr(made, name))
        setattr(made, name, kept)
    torch._C._swap_tensor_impl(tensor, made)
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):  # torch keeps them for the object and for what it had
        setattr(tensor, name, getattr(tensor, name))


def stand(torch, fake_type, fakes):
    """From now on. `fakes` is the mode that makes tensors without contents."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    own = torch.Tensor.data

    def without_contents(tensor):
        with fakes:
            return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)

    def assign(self, value):
        if isinstance(self, fake_type):
            if not isinstance(value, fake_type):
                value = without_contents(value)
            own.__set__(self, value)
            self.fake_device = value.fake_device
        elif isinstance(value, fake_type):
            grad = self.grad
            become(torch, self, without_contents(self))  # where it is first, as torch wants its gradient there
            if grad is not None:
                grad.data = without_contents(grad)
                self.grad = grad
            assign(self, value)
        else:
            own.__set__(self, value)

    def is_put(tensor, made):
        """Whether a tensor is from now on what was made of it; RuntimeErrors are what torch and become() refuse."""
        try:
            if is_traceable_wrapper_subclass(made) and made is not tensor:
                torch.utils.swap_tensors(tensor, torch.nn.Parameter(made, tensor.requires_grad))
            else:
                tensor.data = made
        except RuntimeError:
            return False
        return True

    def move(module, function, recurse=True):
        """As Module._apply(), which gives a module's weights another device or type."""
        for child in module.children() if recurse else ():
            child._apply(function)
        with torch.no_grad():
            for name, weight in module._parameters.items():
                if weight is None:
                    continue
                grad, made = weight.grad, function(weight)
                if torch.nn.parameter.is_lazy(weight) and isinstance(made, fake_type):
                    raise Refused("the lazy module %s" % type(module).__name__)
                if not is_put(weight, made):
                    module._parameters[name] = torch.nn.Parameter(made, weight.requires_grad)
                if grad is not None:
                    made = function(grad)
                    module._parameters[name].grad = grad if is_put(grad, made) else made.requires_grad_(grad.requires_grad)
                weight = grad = made = None  # nothing of it lives while the next one is made
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = function(buffer)
        return module

    torch.Tensor.data = property(own.__get__, assign, doc=own.__doc__)
    torch.nn.Module._apply = move
