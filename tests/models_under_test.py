"""Small models of each family, with random weights that answer differently to each image."""

import functools
import subprocess
import sys

import torch


def torchvision_vit(**changes):
    from torchvision.models import VisionTransformer

    settings = dict(
        image_size=32, patch_size=8, num_layers=5, num_heads=3, hidden_dim=48, mlp_dim=96
    )
    torch.manual_seed(0)
    model = VisionTransformer(**{"num_classes": 10, **settings, **changes}).eval()
    with torch.no_grad():
        model.heads[-1].weight.normal_(std=0.5)
        model.encoder.pos_embedding.mul_(20)
    return model


def hugging_face_vit(**changes):
    import transformers

    settings = dict(
        hidden_size=48, num_hidden_layers=5, num_attention_heads=3, intermediate_size=96
    )
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, num_labels=10, initializer_range=0.2, **{**settings, **changes}
    )
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(config).eval()


PROBE = """
import torch
from torch.nn import functional as f
for kind in (torch.bfloat16, torch.float16):
    for n, d in ((17, 48), (197, 192)):
        x = torch.rand(2, n, d, dtype=kind, requires_grad=True)
        y = f.linear(x, torch.rand(4 * d, d, dtype=kind))
        y = y + f.scaled_dot_product_attention(y, y, y)
        y = y.sum() + f.conv2d(x[None, :, :16], torch.rand(4, 2, 8, 8, dtype=kind)).sum()
        y.backward()
"""


@functools.cache
def has_kernels():
    """Whether torch's 16-bit kernels run; some CPUs report a matrix unit that they do not have."""
    return subprocess.run([sys.executable, "-c", PROBE], check=False).returncode == 0
