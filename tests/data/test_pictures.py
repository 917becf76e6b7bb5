"""One reader of pictures for training, for sites and for prediction: exact pixels of every kind of
file."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import ExifTags, Image

from fedmes.data import pictures
from fedmes.data.custom import read_folders
from fedmes.errors import UserError
from fedmes.prediction import inputs

GREY = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)
COLOUR = np.stack([GREY, 255 - GREY, GREY // 2], axis=-1)
IN_COLOURS = np.stack([GREY] * 3, axis=-1)  # grey, in a kind of file that Pillow reads as RGB
WIDE = (GREY.astype(np.uint16) << 8) | 200  # 16 bits, whose upper eight are GREY


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(samples, colour_type):
    """A PNG of 16 bits a channel, made by hand: Pillow writes only grey ones."""
    height, width = samples.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def of(array, mode=None):
    image = Image.fromarray(array)
    return image if mode is None else image.convert(mode)


def with_alpha(array, alpha):
    return np.concatenate([np.atleast_3d(array), np.full((4, 6, 1), alpha, np.uint8)], axis=-1)


def palette(**options):
    image = Image.fromarray(np.tile(np.arange(6, dtype=np.uint8), (4, 1)), "P")
    image.putpalette([value for colour in COLOUR[0].tolist() for value in colour])
    return saved(image, "PNG", **options)


def held(array, orientation, kind="PNG", **options):
    """As a camera that was turned stores what it saw."""
    about = Image.Exif()
    about[ExifTags.Base.Orientation] = orientation
    return saved(of(array), kind, exif=about, **options)


def mpo():
    """A photograph with its preview behind it, as some cameras write them."""
    return saved(of(np.full((4, 6), 90, np.uint8)), "MPO", save_all=True, append_images=[of(GREY)])


HALF = (GREY.astype(int) * 128 + 255 * 127 + 127) // 255  # half transparent on white
BITS = np.where(GREY > 100, 255, 0).astype(np.uint8)
FIRST_ROW = np.repeat(COLOUR[:1], 4, axis=0)

# a file's name and content, and the pixels that it has
FILES = {
    "grey PNG": ("a.png", saved(of(GREY), "PNG"), GREY),
    "colour PNG": ("a.png", saved(of(COLOUR), "PNG"), COLOUR),
    "grey BMP": ("a.bmp", saved(of(GREY), "BMP"), GREY),
    "colour BMP": ("a.BMP", saved(of(COLOUR), "BMP"), COLOUR),
    "grey TIFF": ("a.tif", saved(of(GREY), "TIFF"), GREY),
    "colour TIFF, packed": ("a.tiff", saved(of(COLOUR), "TIFF", compression="tiff_lzw"), COLOUR),
    "colour WebP": ("a.webp", saved(of(COLOUR), "WEBP", lossless=True), COLOUR),
    "GIF": ("a.gif", saved(of(GREY), "GIF"), IN_COLOURS),
    "grey PGM": ("a.pgm", saved(of(GREY), "PPM"), GREY),
    "colour PPM": ("a.ppm", saved(of(COLOUR), "PPM"), COLOUR),
    "16-bit PNG": ("a.png", saved(of(WIDE), "PNG"), GREY),
    "16-bit colour PNG": ("a.png", png(np.stack([WIDE, WIDE // 2, WIDE // 4], axis=-1), 2),
                          np.stack([WIDE >> 8, WIDE >> 9, WIDE >> 10], axis=-1)),
    "16-bit PNG with alpha": ("a.png", png(np.stack([WIDE, np.full_like(WIDE, 65535)], axis=-1), 4), IN_COLOURS),
    "16-bit TIFF": ("a.tif", saved(of(WIDE), "TIFF"), GREY),
    "16-bit TIFF, other byte order": ("a.tif", saved(Image.frombytes("I;16B", (6, 4), WIDE.astype(">u2").tobytes()),
                                                     "TIFF"), GREY),
    "16-bit PGM": ("a.pgm", b"P5 6 4 65535\n" + WIDE.astype(">u2").tobytes(), GREY),
    "fractions": ("a.tif", saved(of(GREY.astype(np.float32) / 255), "TIFF"), GREY),
    "1-bit PNG": ("a.png", saved(of(BITS, "1"), "PNG"), BITS),
    "1-bit TIFF": ("a.tif", saved(of(BITS, "1"), "TIFF"), BITS),
    "palette": ("a.png", palette(), FIRST_ROW),
    "palette with a transparent colour": ("a.png", palette(transparency=2),
                                          np.where(np.arange(6)[None, :, None] == 2, 255, FIRST_ROW)),
    "grey with alpha, opaque": ("a.png", saved(of(with_alpha(GREY, 255)), "PNG"), GREY),
    "grey with alpha, half": ("a.png", saved(of(with_alpha(GREY, 128)), "PNG"), HALF),
    "colour with alpha, opaque": ("a.png", saved(of(with_alpha(COLOUR, 255)), "PNG"), COLOUR),
    "colour with alpha, nothing to be seen": ("a.png", saved(of(with_alpha(COLOUR, 0)), "PNG"),
                                              np.full_like(COLOUR, 255)),
    "WebP with alpha": ("a.webp", saved(of(with_alpha(COLOUR, 255)), "WEBP", lossless=True), COLOUR),
    "one transparent grey": ("a.png", saved(of(GREY), "PNG", transparency=20), np.where(GREY == 20, 255, GREY)),
    "CMYK": ("a.tif", saved(of(COLOUR).convert("CMYK"), "TIFF"), COLOUR),
    "JPEG": ("a.jpg", saved(of(np.full((4, 6), 90, np.uint8)), "JPEG"), np.full((4, 6), 90)),
    "held upright": ("a.png", held(GREY, 6), np.rot90(GREY, -1)),
    "held upside down": ("a.webp", held(COLOUR, 3, "WEBP", lossless=True), np.rot90(COLOUR, 2)),
    "JPEG with a preview": ("a.jpg", mpo(), np.full((4, 6), 90)),
}  # fmt: skip


@pytest.fixture(params=FILES)
def kind(request, tmp_path):
    name, content, expected = FILES[request.param]
    folder = tmp_path / "site" / "task" / "train" / "class"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    return folder / name, np.atleast_3d(expected)


def test_pixels_of_every_kind_of_file(kind, tmp_path):
    path, expected = kind
    np.testing.assert_array_equal(np.atleast_3d(np.asarray(pictures.read(path))), expected)


def test_training_sites_and_prediction_see_the_same(kind, tmp_path):
    path, expected = kind
    for table in (
        read_folders(tmp_path, None),
        read_folders(tmp_path / "site", None, [tmp_path / "site"]),
    ):
        np.testing.assert_array_equal(table.dataset.x, expected[None])
    height, width, channels = expected.shape
    shape = (channels, height, width)
    np.testing.assert_array_equal(inputs.samples(path, shape, True), expected[None])
    with Image.open(path) as opened:
        np.testing.assert_array_equal(inputs.samples(opened, shape, True), expected[None])
    for fit in ("stretch", "crop"):
        small = read_folders(tmp_path, 3, fit=fit).dataset.x
        found = inputs.samples(path, (channels, 3, 3), True, fit=fit)
        np.testing.assert_array_equal(found, small)


def test_stretched_or_only_its_middle(tmp_path):
    """A black picture with a white bar at its left and right edge, of 2 in 8 pixels each."""
    bars = np.zeros((4, 8), np.uint8)
    bars[:, [0, 1, 6, 7]] = 255
    of(bars).save(tmp_path / "wide.png")
    of(bars.T).save(tmp_path / "tall.png")
    for name in ("wide.png", "tall.png"):
        middle = np.asarray(pictures.read(tmp_path / name, size=4, fit="crop"))
        assert not middle.any()
    whole = np.asarray(pictures.read(tmp_path / "wide.png", size=4))
    assert whole.tolist() == [[219, 32, 32, 219]] * 4


def test_grey_pictures_among_colours(tmp_path):
    """Also where the grey ones come first."""
    for name, pixels in (("a", GREY), ("b", 255 - GREY), ("c", COLOUR), ("d", GREY)):
        folder = tmp_path / "site/task/train" / name
        folder.mkdir(parents=True)
        of(pixels).save(folder / "a.png")
    expected = [IN_COLOURS, 255 - IN_COLOURS, COLOUR, IN_COLOURS]
    np.testing.assert_array_equal(read_folders(tmp_path, None).dataset.x, expected)


def test_two_kinds_that_16_bits_tell_apart_stay_apart(tmp_path):
    """Grey 20000 and 45000 of 65535: both would be white if they were cut off at 255."""
    for label, level in (("dark", 20000), ("light", 45000)):
        folder = tmp_path / "site/task/train" / label
        folder.mkdir(parents=True)
        Image.fromarray(np.full((8, 8), level, np.uint16)).save(folder / "a.png")
    assert [set(x.ravel()) for x in read_folders(tmp_path, None).dataset.x] == [
        {20000 >> 8},
        {45000 >> 8},
    ]


def tiff(array):
    return saved(of(array), "TIFF")


def animated(kind):
    return saved(of(GREY), kind, save_all=True, append_images=[of(255 - GREY)])


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "a.tif",
            tiff(GREY.astype(np.int32) * 100_000),
            "whole numbers of which no one knows what is white",
        ),
        (
            "a.tif",
            tiff(GREY.astype(np.float32)),
            r"values from 0\.0 to 230\.0; read are 8 or 16 bits, or fractions",
        ),
        ("a.tif", tiff(np.full((4, 6), np.nan, np.float32)), "values from nan to nan"),
        ("a.tif", animated("TIFF"), "it holds 2 pictures; save each in a file of its own"),
        ("a.gif", animated("GIF"), "it holds 2 pictures"),
        ("a.png", animated("PNG"), "it holds 2 pictures"),
        ("a.webp", animated("WEBP"), "it holds 2 pictures"),
        (
            "a.png",
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n%%EOF\n",
            "none of PNG, JPEG, BMP, GIF, PPM",
        ),
        ("a.tif", tiff(GREY)[:-40], "cannot be read as an image"),
        ("a.bmp", saved(of(GREY), "BMP")[:60], "cannot be read as an image"),
        ("a.webp", saved(of(COLOUR), "WEBP")[:40], "cannot be read as an image"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_what_cannot_be_read_as_one_picture(name, content, reason, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=reason) as error:
        pictures.read(tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}: ")
    with pytest.raises(UserError, match=reason):
        inputs.samples(tmp_path / name, (1, 4, 6), True)


def test_catalogue_pictures_are_png_or_jpeg(tmp_path):
    (tmp_path / "a.jpg").write_bytes(saved(of(GREY), "BMP"))
    assert pictures.read(tmp_path / "a.jpg").mode == "L"
    with pytest.raises(UserError, match=r"cannot be read as an image \(none of PNG, JPEG\)"):
        pictures.read(tmp_path / "a.jpg", formats=("PNG", "JPEG"))


# --- arrays given to predict ----------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("number", [1, 10, 12])
@pytest.mark.parametrize("pixels", [True, False])
def test_sequences_are_never_taken_for_one_picture(width, number, pixels):
    """(N, L, W), as it may be in own data, for a client that has learned from 12 steps of a few
    numbers."""
    x = (
        np.arange(number * 12 * width)
        .reshape(number, 12, width)
        .astype(np.uint8 if pixels else np.float32)
    )
    np.testing.assert_array_equal(inputs.samples(x, (1, 12, width), pixels), x[..., None])


def test_sequences_of_another_length_are_several_too():
    assert inputs.samples(np.zeros((10, 14, 3), np.uint8), (1, 12, 3), True).shape == (10, 12, 3, 1)


@pytest.mark.parametrize(
    ("given", "shape", "number"),
    [
        ((12, 12, 3), (3, 12, 12), 1), ((20, 30, 3), (1, 12, 12), 1), ((5, 12, 12), (1, 12, 12), 5),
        ((12, 12), (1, 12, 12), 1), ((12, 12, 1), (1, 12, 12), 1), ((8, 3, 3), (3, 8, 3), 1),
        ((20, 30, 4), (3, 8, 8), 1),
    ],
)  # fmt: skip
def test_how_many_pictures_an_array_is(given, shape, number):
    assert len(inputs.samples(np.zeros(given, np.uint8), shape, True)) == number


def test_channels_first_gets_a_hint():
    with pytest.raises(UserError, match=r"this client has learned from 8x8x3; channels come last"):
        inputs.samples(np.zeros((5, 3, 8, 8), np.uint8), (3, 8, 8), True)


def test_values_beyond_float32_are_said():
    with pytest.raises(UserError, match="beyond float32"):
        inputs.samples(np.full((2, 4), 1e300), (4,), False)
