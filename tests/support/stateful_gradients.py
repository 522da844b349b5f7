"""As stateful.py, in PyTorch: functions whose backward passes keep something."""

# mypy: allow-untyped-defs

import torch

import torch_impl

LAST = {}


class Kept(torch.autograd.Function):
    """Saves what its backward pass needs where the next forward pass puts its own."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        LAST["x"], LAST["weight"], LAST["eps"] = x, weight, eps
        return torch_impl.rms_norm(x, weight, eps=eps)

    @staticmethod
    def backward(ctx, cotangent):
        x, weight = (LAST[name].detach().requires_grad_() for name in ("x", "weight"))
        with torch.enable_grad():
            result = torch_impl.rms_norm(x, weight, eps=LAST["eps"])
        return *torch.autograd.grad(result, (x, weight), cotangent), None


def saved_for_all(x, weight, *, eps):
    return Kept.apply(x, weight, eps)


class Spent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        ctx.eps, ctx.times = eps, 0
        return torch_impl.rms_norm(x, weight, eps=eps)

    @staticmethod
    def backward(ctx, cotangent):
        ctx.times += 1
        x, weight = (saved.detach().requires_grad_() for saved in ctx.saved_tensors)
        with torch.enable_grad():
            result = torch_impl.rms_norm(x, weight, eps=ctx.eps)
        return *torch.autograd.grad(result, (x, weight), cotangent * ctx.times), None


def added_up(x, weight, *, eps):
    return Spent.apply(x, weight, eps)
