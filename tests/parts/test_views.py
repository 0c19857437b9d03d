"""The views against torchvision's own transforms, and what their draws promise."""

import colorsys
import dataclasses

import pytest
import torch
from torchvision.transforms import functional as reference
from torchvision.transforms.functional import InterpolationMode

from opentta.parts.views import (
    BLUR,
    JITTERS,
    NOISE,
    Crops,
    StrongView,
    blur,
    chunks,
    draw_jitter,
    draw_strong,
    jitter,
    move,
    recolour,
    strong,
    turn_hue,
)

STILL = StrongView((0, 1, 2, 3, 4), 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, (0.0, 0.0), 1.0, 0.001, False)
FILL = torch.tensor([0.2, 0.5, 0.8]).view(1, 3, 1, 1)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def photo(batch=2, height=32, width=32):
    """Smooth pictures: neighbours alike, as in a photograph."""
    coarse = torch.rand(batch, 3, 5, 5, generator=seeded(7))
    return torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")


def crops(images, views, *, padding=4, flip=0.5, seed=0):
    return Crops(images, views, padding=padding, flip=flip, fill=FILL, generator=seeded(seed))


# The strong chain -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("shape", [(32, 32), (48, 32)])
def test_place_and_blur_equal_padding_turning_blurring_and_cropping(seed, shape):
    """Sampling the edge equals padding by half a side first, and costs a quarter."""
    height, width = shape
    x, (view,) = photo(2, *shape), draw_strong(1, seeded(seed))
    padded = reference.pad(x, [width // 2, height // 2], padding_mode="edge")
    shift = [round(view.shift[0] * width / 8), round(view.shift[1] * height / 8)]
    turned = reference.affine(
        padded, view.angle, shift, view.scale, [0.0], InterpolationMode.BILINEAR
    )
    blurred = reference.gaussian_blur(turned, [5, 5], [view.sigma, view.sigma])
    expected = reference.center_crop(blurred, [height, width])
    ours = blur(move(x, view, margin=BLUR), view.sigma)
    torch.testing.assert_close(ours, expected, atol=2e-5, rtol=0)


def test_colours_change_in_the_views_order():
    x = photo()
    view = dataclasses.replace(STILL, brightness=1.4, gamma=0.7, contrast=0.8)
    first = reference.adjust_contrast(reference.adjust_brightness(x, 1.4), 0.8)
    first = reference.adjust_gamma(first.clamp(1e-8, 1), 0.7)
    torch.testing.assert_close(recolour(x, view), first, atol=2e-6, rtol=0)
    other = recolour(x, dataclasses.replace(view, order=(4, 3, 2, 1, 0)))
    last = reference.adjust_gamma(x.clamp(1e-8, 1), 0.7)
    last = reference.adjust_brightness(reference.adjust_contrast(last, 0.8), 1.4)
    torch.testing.assert_close(other, last, atol=2e-6, rtol=0)
    assert not torch.allclose(first, last, atol=1e-2)


@pytest.mark.parametrize("share", [-0.06, 0.0, 0.03, 0.4])
def test_the_hue_turns_as_torchvisions(share):
    grey = torch.linspace(0, 1, 32).expand(1, 3, 32, 32)
    pure = torch.eye(3)[:, :, None, None].expand(3, 3, 32, 32)
    x = torch.cat([photo(), torch.rand(1, 3, 32, 32, generator=seeded()), grey, pure])
    expected = reference.adjust_hue(x, share)
    torch.testing.assert_close(turn_hue(x, share), expected, atol=1e-5, rtol=0)


def test_a_view_that_changes_nothing_only_adds_noise():
    x = photo(8) * 0.8 + 0.1
    noise = strong(x, STILL, seeded()) - x
    assert noise.std() == pytest.approx(NOISE, rel=0.05) and noise.abs().max() < 6 * NOISE
    mirrored = strong(x, dataclasses.replace(STILL, flip=True), seeded())
    assert (mirrored - x.flip(-1)).abs().max() < 6 * NOISE


def test_one_draw_is_shared_by_the_batch():
    x = photo(1).expand(4, -1, -1, -1)
    for view in draw_strong(3, seeded(2)):
        out = strong(x, view, seeded())
        assert (out - out[:1]).abs().max() < 12 * NOISE


def test_views_stay_in_range_and_keep_shape_and_input():
    x = torch.rand(2, 3, 32, 32, generator=seeded())
    before = x.clone()
    for view in draw_strong(20, seeded(1)):
        out = strong(x, view, seeded())
        assert out.shape == x.shape and out.min() >= 0 and out.max() <= 1
    assert torch.equal(x, before)
    half = strong(x.half(), STILL, seeded())
    assert torch.isfinite(half).all()


def test_parameters_lie_in_the_papers_ranges():
    views = draw_strong(400, seeded())
    ranges = {
        "brightness": (0.6, 1.4),
        "contrast": (0.7, 1.3),
        "saturation": (0.5, 1.5),
        "hue": (-0.06, 0.06),
        "gamma": (0.7, 1.3),
        "angle": (-15, 15),
        "scale": (0.9, 1.1),
        "sigma": (0.001, 0.5),
    }
    for name, (low, high) in ranges.items():
        drawn = torch.tensor([getattr(v, name) for v in views])
        assert low <= drawn.min() and drawn.max() <= high, name
        assert drawn.max() - drawn.min() > 0.95 * (high - low), name
    assert {v.order[0] for v in views} == set(range(5))
    assert all(sorted(v.order) == list(range(5)) for v in views)
    assert 150 < sum(v.flip for v in views) < 250


def test_the_same_seed_draws_the_same_views():
    x = photo()

    def made(seed):
        generator = seeded(seed)
        return torch.stack([strong(x, v, generator) for v in draw_strong(3, generator)])

    assert torch.equal(made(4), made(4))
    assert not torch.allclose(made(4), made(5), atol=1e-2)


# The same chain without blur and noise, drawn on the device -------------------------------------


def turned(x, share):
    """The hue turned pixel by pixel: torchvision's own is in float32."""
    pixels = x.movedim(1, -1).reshape(-1, 3).tolist()
    hsv = [colorsys.rgb_to_hsv(*pixel) for pixel in pixels]
    rgb = [colorsys.hsv_to_rgb((h + share) % 1.0, s, v) for h, s, v in hsv]
    return torch.tensor(rgb, dtype=x.dtype).view(*x.movedim(1, -1).shape).movedim(-1, 1)


def jittered(x, u):
    """torchvision's own transforms, by draws (15,) read to the host."""
    u, (height, width) = u.tolist(), x.shape[-2:]

    def at(low, high, place):
        return low + (high - low) * u[place]

    changes = [
        lambda x: reference.adjust_brightness(x, at(0.6, 1.4, 5)),
        lambda x: reference.adjust_contrast(x, at(0.7, 1.3, 6)),
        lambda x: reference.adjust_saturation(x, at(0.5, 1.5, 7)),
        lambda x: turned(x, at(-0.06, 0.06, 8)),
        lambda x: reference.adjust_gamma(x.clamp(1e-8, 1), at(0.7, 1.3, 9)),
    ]
    for _, change in sorted(zip(u[:5], changes, strict=True), key=lambda pair: pair[0]):
        x = change(x)
    x = reference.pad(x, [width // 2, height // 2], padding_mode="reflect")
    shift = [round(at(-1, 1, 11) * x.shape[-1] / 16), round(at(-1, 1, 12) * x.shape[-2] / 16)]
    angle, scale = at(-15, 15, 10), at(0.9, 1.1, 13)
    x = reference.affine(x, angle, shift, scale, [0.0], InterpolationMode.BILINEAR)
    x = reference.center_crop(x, [height, width])
    return (x.flip(-1) if u[14] < 0.5 else x).clamp(0, 1)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shape", [(32, 32), (48, 32)])
def test_a_jittered_view_is_torchvisions(seed, shape):
    u = draw_jitter(seeded(seed))
    x = torch.cat([photo(2, *shape), torch.rand(2, 3, *shape, generator=seeded())]).double()
    torch.testing.assert_close(jitter(x, u), jittered(x, u), atol=1e-12, rtol=0)
    torch.testing.assert_close(jitter(x.float(), u), jitter(x, u).float(), atol=5e-5, rtol=0)


def test_every_colour_change_may_come_at_every_place():
    orders = [draw_jitter(seeded(s))[:5].argsort().tolist() for s in range(100)]
    assert all({order[place] for order in orders} == set(range(5)) for place in range(5))


def test_jitter_at_the_middle_of_every_range_changes_nothing():
    x = photo(3)
    still = torch.full((JITTERS,), 0.5, dtype=torch.float64)  # and 0.5 is no flip
    torch.testing.assert_close(jitter(x, still), x, atol=1e-6, rtol=0)
    still[14] = 0.49
    torch.testing.assert_close(jitter(x, still), x.flip(-1), atol=1e-6, rtol=0)


def test_jitter_stays_in_range_keeps_its_input_and_takes_half_precision():
    x = torch.rand(2, 3, 32, 32, generator=seeded())
    before = x.clone()
    for seed in range(10):
        out = jitter(x, draw_jitter(seeded(seed)))
        assert out.shape == x.shape and out.min() >= 0 and out.max() <= 1
    assert torch.equal(x, before)
    assert jitter(x.half(), draw_jitter(seeded())).dtype == torch.float32


# Crops ------------------------------------------------------------------------------------------


def test_the_first_view_is_the_image_itself():
    x = photo(3)
    made = crops(x, 4)
    assert len(made) == 12
    assert torch.equal(made[0:3], x)
    assert crops(x, 1)[0:3].equal(x) and len(crops(x, 1)) == 3


def test_every_crop_is_a_place_in_the_padded_image_mirrored_or_not():
    x = torch.rand(2, 3, 6, 8, generator=seeded())
    padded = FILL.expand(2, 3, 10, 12).clone()
    padded[:, :, 2:8, 2:10] = x
    made = crops(x, 9, padding=2)[0:18]
    places = set()
    for n, crop in enumerate(made):
        found = [
            (top, left, flip)
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            if crop.equal(_cut(padded[n % 2], top, left, flip))
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 10  # each image and view has its own draw


def _cut(image, top, left, flip):
    cut = image[:, top : top + 6, left : left + 8]
    return cut.flip(-1) if flip else cut


def test_the_border_is_zero_after_normalisation():
    made = crops(torch.ones(1, 3, 6, 6), 60)[0:60]
    border = made != 1.0
    assert border.any()
    assert ((made - FILL) * border).abs().max() == 0


def test_cutting_in_parts_changes_nothing():
    made = crops(photo(3), 5)
    whole = made[0 : len(made)]
    parts = torch.cat([made[part] for part in chunks(len(made), 4)])
    assert torch.equal(parts, whole)


def test_no_padding_and_no_flip_is_no_augmentation():
    x = photo(2)
    assert torch.equal(crops(x, 3, padding=0, flip=0.0)[0:6], x.repeat(3, 1, 1, 1))
    assert torch.equal(crops(x, 2, padding=0, flip=1.0)[2:4], x.flip(-1))


def test_half_of_the_crops_are_mirrored():
    x = photo(4)
    made = crops(x, 101, padding=0)[4:404]
    mirrored = (made == x.flip(-1).repeat(100, 1, 1, 1)).flatten(1).all(dim=1).sum()
    assert 160 < mirrored < 240


def test_chunks_cover_everything_once():
    assert list(chunks(5, 2)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(chunks(2, 256)) == [slice(0, 2)]
