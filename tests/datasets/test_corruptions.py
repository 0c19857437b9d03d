"""What the corruptions promise, and their arithmetic against independent, slower code."""

import colorsys
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from opentta.datasets.corruptions import (
    CORRUPTIONS,
    EXTRA_CORRUPTIONS,
    blur,
    corrupt,
    corrupted,
    digital,
    encode,
    frost,
    noise,
    prepare,
    rng_for,
    stored,
    weather,
)
from opentta.datasets.corruptions import pixels as pixel_maths
from opentta.datasets.corruptions.constants import TABLES
from opentta.errors import ConfigError, DtypeError, ShapeError, UnknownNameError

EVERY = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
SEVERITIES = range(1, 6)
FIXED = (  # draw nothing
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
    "gaussian_blur",
    "saturate",
)
GOLDEN = np.load(Path(__file__).parent / "golden" / "corruptions.npz")


def picture(height=64, width=80, seed=0):
    """Soft blobs with some grain: what a photograph is to these functions."""
    rng = np.random.default_rng(seed)
    values = ndimage.gaussian_filter(rng.normal(size=(height, width, 3)), (6, 6, 0)) * 900
    return np.clip(128 + values + rng.normal(0, 6, values.shape), 0, 255).astype(np.uint8)


def difference(a, b):
    return np.abs(a.astype(int) - b.astype(int))


# ---- promises of every corruption


@pytest.mark.parametrize("size", ["224", "32"])
@pytest.mark.parametrize("name", EVERY)
def test_every_cell_gives_its_golden_image(name, size):
    """Two levels of slack, for other builds of OpenCV, scipy and libjpeg; no more."""
    clean, golden = GOLDEN[f"{size}/clean"], GOLDEN[f"{size}/{name}"]
    for severity in SEVERITIES:
        rng = rng_for("golden", name, severity)
        out = corrupt(clean, name, severity, rng, constants=size)
        off = difference(out, golden[severity - 1])
        # A pixel at the edge of a flake or a drop may fall on its other side.
        assert (off > 2).mean() < 0.005, f"{name} {severity}: {off.max()} levels off"
        assert off.mean() < 0.1, f"{name} {severity}"


@pytest.mark.parametrize("shape", [(32, 32), (33, 57), (90, 49), (260, 224)])
@pytest.mark.parametrize("name", EVERY)
def test_any_size_from_32_pixels_up(name, shape):
    image = picture(*shape)
    for severity in (1, 5):
        for size in ("224", "32"):
            rng = np.random.default_rng(1)
            out = corrupt(image, name, severity, rng, constants=size)
            assert out.shape == image.shape
            assert out.dtype == np.uint8


@pytest.mark.parametrize("name", EVERY)
def test_input_and_global_random_state_are_left_alone(name):
    image = picture()
    image.flags.writeable = False
    before = image.copy()
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the state that must not be used
    out = corrupt(image, name, 5, np.random.default_rng(0))
    assert (image == before).all()
    assert not np.shares_memory(out, image)
    assert out.flags.writeable
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


@pytest.mark.parametrize("name", EVERY)
def test_equal_generators_give_equal_images(name):
    image = picture()
    first, again, other = (corrupt(image, name, 3, np.random.default_rng(s)) for s in (7, 7, 8))
    assert (first == again).all()
    assert (first == other).all() == (name in FIXED)


@pytest.mark.parametrize("name", [n for n in EVERY if n != "saturate"])
def test_severity_5_is_farther_from_the_clean_image_than_severity_1(name):
    """Not for saturate, whose severities go from greyish to garish."""
    image = picture(96, 96)
    mild, strong = (
        np.mean([difference(corrupt(image, name, s, rng_for(str(i), name, s)), image).mean()
                 for i in range(4)])
        for s in (1, 5)
    )  # fmt: skip
    # elastic_transform moves far and smoothly first, little and roughly last: 1 has the most
    assert (strong > mild) == (name != "elastic_transform")


def test_non_contiguous_images_are_welcome():
    image = picture(80, 80)[::2, ::-1][:, :60]
    for name in EVERY:
        out = corrupt(image, name, 4, np.random.default_rng(3))
        same = corrupt(image.copy(), name, 4, np.random.default_rng(3))
        assert (out == same).all(), name


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("level", [0, 255])
def test_flat_images_have_no_bad_arithmetic(name, level):
    """Black has no hue, white no room: no division by zero (warnings are errors here)."""
    image = np.full((40, 44, 3), level, np.uint8)
    for severity in SEVERITIES:
        corrupt(image, name, severity, np.random.default_rng(severity))


def test_names_are_the_fifteen_and_the_four():
    assert len(CORRUPTIONS) == 15
    assert CORRUPTIONS[0] == "gaussian_noise"
    assert CORRUPTIONS[-1] == "jpeg_compression"
    assert EXTRA_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    for table in TABLES.values():
        assert set(table) == set(EVERY)


def test_constants_follow_the_short_side():
    for side, size in ((48, "32"), (49, "224")):
        image = picture(side, 90)
        auto = corrupt(image, "contrast", 5, np.random.default_rng(0))
        told = corrupt(image, "contrast", 5, np.random.default_rng(0), constants=size)
        assert (auto == told).all()


# ---- errors


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"image": picture().astype(float)}, DtypeError, "expected uint8 pixels, got float64"),
        ({"image": "cat.jpg"}, DtypeError, "got str"),
        ({"image": picture()[..., 0]}, ShapeError, r"\(H, W, 3\), got \(64, 80\)"),
        ({"image": picture().transpose(2, 0, 1)}, ShapeError, "channels come last"),
        ({"image": picture(31, 80)}, ShapeError, "at least 32 pixels, got 31x80"),
        ({"name": "fogg"}, UnknownNameError, "did you mean 'fog'"),
        ({"severity": 0}, ConfigError, "severity from 1 to 5, got 0"),
        ({"severity": 6}, ConfigError, "severity from 1 to 5, got 6"),
        ({"severity": 2.5}, ConfigError, "severity from 1 to 5, got 2.5"),
        ({"severity": True}, ConfigError, "severity from 1 to 5, got True"),
        ({"rng": 3}, ConfigError, "expected a numpy Generator as rng, got int"),
        ({"rng": None}, ConfigError, "got NoneType"),
        ({"constants": "64"}, ConfigError, 'expected constants "224", "32" or None'),
    ],
)
def test_a_wrong_argument_is_named_with_its_remedy(change, error, words):
    rng = np.random.default_rng(0)
    arguments = {"image": picture(), "name": "fog", "severity": 3, "rng": rng} | change
    with pytest.raises(error, match=words):
        corrupt(**arguments)


# ---- draws and storage


def test_the_draw_is_pinned():
    """Other numbers here would silently make other data sets under the same names."""
    draws = [
        int(rng_for(*triple).integers(1 << 30))
        for triple in (("a.JPEG", "fog", 5), ("a.JPEG", "fog", 4), ("é/ü.png", "snow", 1))
    ]
    assert draws == [740040053, 904857665, 263436392]


def test_the_draw_depends_on_key_name_and_severity_and_their_borders():
    triples = [("a", "fog", 5), ("b", "fog", 5), ("a", "snow", 5), ("a", "fog", 4), ("af", "og", 5)]
    assert len({int(rng_for(*t).integers(1 << 62)) for t in triples}) == len(triples)


def test_corrupted_is_corrupt_and_the_stored_round_trip():
    image = picture(64, 80)
    raw = corrupt(image, "snow", 4, rng_for("k", "snow", 4))
    out = corrupted(image, "k", "snow", 4)
    assert (out == stored(raw)).all()
    assert 0 < difference(out, raw).mean() < 12  # JPEG 85 shows, and is not more than that
    small = picture(48, 80)
    assert (
        corrupted(small, "k", "snow", 4) == corrupt(small, "snow", 4, rng_for("k", "snow", 4))
    ).all()


def test_encode_is_jpeg_above_48_pixels_and_png_below():
    assert encode(picture(49, 60))[0].startswith(b"\xff\xd8")
    assert encode(picture(48, 60))[0].startswith(b"\x89PNG")


@pytest.mark.parametrize("shape", [(300, 500), (500, 301), (256, 256), (100, 75), (60, 1000)])
def test_prepare_is_torchvisions_resize_and_centre_crop(shape):
    from PIL import Image
    from torchvision.transforms import CenterCrop, Compose, Resize

    image = picture(*shape)
    theirs = np.asarray(Compose([Resize(256), CenterCrop(224)])(Image.fromarray(image)))
    assert (prepare(image) == theirs).all()


@pytest.mark.parametrize("shape, crop", [((224, 224), 224), ((32, 48), 224), ((90, 70), None)])
def test_prepare_leaves_alone_what_needs_no_cut(shape, crop):
    image = picture(*shape)
    assert (prepare(image, crop) == image).all()


# ---- arithmetic, against slow and simple code


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_wander_is_the_sequential_copying(reach):
    """Bottom right to top left, one pixel after the other, each a copy of a neighbour."""
    height, width = 37, 41
    pixels = np.arange(height * width)
    rows = range(reach + 1, height - reach + 1)
    columns = range(reach + 1, width - reach + 1)
    shift = np.random.default_rng(5).integers(-reach, reach, size=(2, len(rows) * len(columns)))
    dy, dx = shift.reshape(2, len(rows), len(columns))
    grid = pixels.reshape(height, width).copy()
    for i in reversed(range(len(rows))):
        for j in reversed(range(len(columns))):
            grid[rows[i], columns[j]] = grid[rows[i] + dy[i, j], columns[j] + dx[i, j]]
    source = blur.wander(height, width, reach, np.random.default_rng(5))
    assert (pixels[source] == grid.ravel()).all()


@pytest.mark.parametrize("angle", [-44.0, 0.0, 17.0, -90.0, -130.0])
def test_streak_takes_its_taps_along_one_ray(angle):
    image, radius, sigma = picture(40, 50), 10, 4.0
    padded = np.pad(image.astype(float), ((30, 30), (30, 30), (0, 0)), mode="edge")
    weights = [math.exp(-(k**2) / (2 * sigma**2)) for k in range(2 * radius + 1)]
    out = np.zeros(image.shape)
    for k, weight in enumerate(weights):
        x = 30 + math.ceil(k * math.cos(math.radians(angle)) - 0.5)
        y = 30 + math.ceil(k * math.sin(math.radians(angle)) - 0.5)
        out += weight / sum(weights) * padded[y : y + 40, x : x + 50]
    ours = pixel_maths.streaked(image, radius, sigma, angle)
    assert difference(ours, np.floor(out + 0.5 / 257)).max() <= 1
    assert (ours != np.floor(out + 0.5 / 257)).mean() < 0.001


@pytest.mark.parametrize("factor", [1.01, 1.11, 1.3, 2.5, 4.5])
@pytest.mark.parametrize("side", [32, 65, 224])
def test_magnified_is_scipys_zoom_of_the_centre(side, factor):
    image = picture(side, side) / 255.0
    crop = math.ceil(side / factor)
    top = (side - crop) // 2
    piece = image[top : top + crop, top : top + crop]
    zoomed = ndimage.zoom(piece, (factor, factor, 1), order=1)
    trim = (len(zoomed) - side) // 2
    zoomed = zoomed[trim : trim + side, trim : trim + side]
    np.testing.assert_allclose(pixel_maths.magnified(image, factor), zoomed, atol=1e-9)


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.5, 6.0])
def test_gaussian_is_scipys_with_nearest_edges(sigma):
    image = picture(40, 33) / 255.0
    theirs = ndimage.gaussian_filter(image, (sigma, sigma, 0), mode="nearest", truncate=4)
    np.testing.assert_allclose(pixel_maths.gaussian(image, sigma), theirs, atol=1e-9)


@pytest.mark.parametrize("sigma", [1.0, 2.44, 19.5, 170.8])
def test_mirrored_gaussian_is_scipys_even_when_wider_than_the_image(sigma):
    field = np.random.default_rng(0).uniform(-1, 1, (47, 60))
    theirs = ndimage.gaussian_filter(field, sigma, mode="reflect", truncate=3)
    np.testing.assert_allclose(pixel_maths.gaussian_mirrored(field, sigma), theirs, atol=1e-9)


def test_elastic_samples_as_scipys_map_coordinates():
    rng = np.random.default_rng(0)
    image = (picture(40, 50) / 255.0).astype(np.float32)
    y = np.arange(40)[:, None] + rng.normal(0, 9, (40, 50))
    x = np.arange(50) + rng.normal(0, 9, (40, 50))
    theirs = [ndimage.map_coordinates(image[..., c], (y, x), order=1, mode="reflect") for c in
              range(3)]  # fmt: skip
    np.testing.assert_allclose(digital._sampled(image, y, x), np.stack(theirs, -1), atol=1e-5)


def test_defocus_averages_over_a_disk():
    image = picture(50, 60)
    kernel = blur._disk(6, 0.5)
    theirs = ndimage.correlate(image / 255.0, kernel[..., None].astype(float), mode="mirror")
    ours = corrupt(image, "defocus_blur", 3, np.random.default_rng(0))
    assert difference(ours, (np.clip(theirs, 0, 1) * 255).astype(np.uint8)).max() <= 1
    assert kernel.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name, channel", [("brightness", 2), ("saturate", 1)])
def test_brightness_and_saturate_move_one_channel_of_hsv(name, channel):
    image = picture(32, 32)
    image[:8] = np.arange(8 * 32, dtype=np.uint8).reshape(8, 32, 1)  # greys, black and white
    for severity in SEVERITIES:
        row = TABLES["224"][name][severity - 1]
        factor, offset = (1, row[0]) if name == "brightness" else row
        ours = corrupt(image, name, severity, np.random.default_rng(0), constants="224")
        for pixel, out in zip(image.reshape(-1, 3), ours.reshape(-1, 3), strict=True):
            hsv = list(colorsys.rgb_to_hsv(*(pixel / 255.0)))
            hsv[channel] = min(max(hsv[channel] * factor + offset, 0), 1)
            theirs = np.array(colorsys.hsv_to_rgb(*hsv)) * 255
            assert np.abs(theirs.astype(int) - out).max() <= 1, (severity, pixel)


def test_contrast_truncates():
    image = np.full((32, 32, 3), 100, np.uint8)
    image[:16] = 101
    out = corrupt(image, "contrast", 1, np.random.default_rng(0), constants="224")
    # 100.5 - 0.5 * 0.4 = 100.3 and 100.5 + 0.5 * 0.4 = 100.7: rounding would give 101
    assert (out == 100).all()


# ---- statistics of the random ones


@pytest.mark.parametrize("photons", [60, 12, 3, 500])
def test_shot_noise_counts_are_poisson(photons):
    levels = np.array([0, 40, 128, 200, 255], np.uint8)
    image = np.repeat(levels, 3 * 20000).reshape(5, 20000, 3)
    ours = noise.shot_noise(image, np.random.default_rng(0), photons).reshape(5, -1)
    counts = np.random.default_rng(1).poisson(image / 255.0 * photons).reshape(5, -1)
    theirs = (np.clip(counts / photons, 0, 1) * 255).astype(np.uint8)
    for mine, other in zip(ours, theirs, strict=True):
        spread = max(other.std(), 1e-9)
        assert abs(mine.mean() - float(other.mean())) <= 5 * spread * math.sqrt(2 / 60000)
        assert mine.std() == pytest.approx(other.std(), rel=0.03)


def test_gaussian_and_speckle_noise_have_their_deviation():
    image = np.full((200, 200, 3), 128, np.uint8)
    rng = np.random.default_rng(0)
    plain = noise.gaussian_noise(image, rng, 0.08)
    assert plain.std() == pytest.approx(0.08 * 255, rel=0.02)
    assert plain.mean() == pytest.approx(127.5, abs=0.3)  # truncated: half a level darker
    speckle = noise.speckle_noise(image, rng, 0.15)
    assert speckle.std() == pytest.approx(0.15 * 128, rel=0.02)


def test_impulse_noise_hits_its_share_of_values_evenly():
    image = np.full((200, 200, 3), 128, np.uint8)
    out = noise.impulse_noise(image, np.random.default_rng(0), 0.27)
    assert (out == 0).mean() == pytest.approx(0.135, abs=0.005)
    assert (out == 255).mean() == pytest.approx(0.135, abs=0.005)
    assert ((out != 128).all(axis=2)).mean() == pytest.approx(0.27**3, abs=0.005)  # by channel


def test_plasma_fills_the_unit_range_and_wraps():
    cloud = weather.plasma(100, 2.0, np.random.default_rng(0))
    assert cloud.shape == (128, 128)
    assert cloud.min() == 0
    assert cloud.max() == 1
    step = np.abs(np.diff(cloud, axis=0)).mean()
    assert np.abs(cloud[0] - cloud[-1]).mean() < 3 * step


def test_snow_lies_on_the_picture_and_on_its_upside_down():
    """The layer is added twice, so on black the change is symmetric under half a turn."""
    out = corrupt(np.zeros((64, 64, 3), np.uint8), "snow", 2, np.random.default_rng(0))
    assert out.max() > 100
    assert (out == out[::-1, ::-1]).all()


def test_ice_is_drawn_anew_by_rule_and_differs_from_crop_to_crop():
    frost.plates.cache_clear()
    first = frost.ice(64, 80, 1, np.random.default_rng(3)).copy()
    frost.plates.cache_clear()
    assert (frost.ice(64, 80, 1, np.random.default_rng(3)) == first).all()
    means = {round(float(frost.ice(64, 80, 1, np.random.default_rng(s)).mean())) for s in range(40)}
    assert len(means) > 15
    assert min(means) < 120 < 200 < max(means)


def test_ice_covers_images_larger_than_a_plate():
    layer = frost.ice(700, 1100, 1, np.random.default_rng(0))
    assert layer.shape == (700, 1100, 3)
    assert layer.std(axis=(0, 1)).min() > 5
