"""Small models of each family, with random weights that answer differently to each image."""

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
