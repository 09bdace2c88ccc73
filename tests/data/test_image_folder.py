from pathlib import Path

import pytest
import torch
from PIL import Image

from plumbline.data.files import DataError
from plumbline.data.image_folder import image_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten dogs of value 100 to 109 and ten cats of value 200 to 209, in various formats."""
    root = tmp_path / "pets"
    for name, start in (("dog", 100), ("cat", 200)):
        (root / name / "more").mkdir(parents=True)
        for k in range(10):
            suffix = ("png", "BMP", "tiff")[k % 3]
            place = root / name / ("more" if k % 2 else "") / f"{k}.{suffix}"
            Image.new("RGB", (12, 20), (start + k,) * 3).save(place)
        (root / name / "notes.txt").write_text("not an image")
        (root / name / ".hidden.png").write_text("not an image")
    (root / ".git").mkdir()
    (root / "README.md").write_text("pets")
    return root


def values(part) -> list[int]:
    return [int(image.unique()) for image in part.x]


def test_one_folder_for_each_class(folder: Path) -> None:
    loaded = image_folder(folder, size=8)
    assert loaded.name == "pets"
    assert loaded.classes == ("cat", "dog")
    assert (len(loaded.train), len(loaded.test)) == (16, 4)
    assert loaded.train.x.shape == (16, 3, 8, 8)
    assert sorted(values(loaded.train) + values(loaded.test)) == [
        *range(100, 110),
        *range(200, 210),
    ]
    for part in (loaded.train, loaded.test):
        assert part.y.tolist() == [int(value < 200) for value in values(part)]
        assert part.sensitive_features is None
    x, _ = loaded.train.fetch(torch.arange(3))
    torch.testing.assert_close(x, loaded.train.x[:3] / 255)


def test_classes_that_were_looked_up_are_not_covered(folder: Path) -> None:
    (line,) = image_folder(folder, size=8).not_covered
    assert "the classes' names (the folders')" in line
    declared = image_folder(folder, size=8, classes=("dog", "cat", "bird"))
    assert declared.not_covered == ()
    assert declared.classes == ("dog", "cat", "bird")
    assert declared.train.y.tolist() == [int(value >= 200) for value in values(declared.train)]


def test_groups_by_a_mapping_or_a_function(folder: Path) -> None:
    def group(name: str) -> str:
        return "deep" if "/more/" in name else "shallow"

    by_function = image_folder(folder, size=8, sensitive=group)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.*")]
    by_mapping = image_folder(
        folder,
        size=8,
        classes=("cat", "dog"),
        sensitive={name: group(name) for name in names},
        groups=("shallow", "deep"),
    )
    assert by_function.groups == ("deep", "shallow")
    expected = [int(value % 2 == 0) for value in values(by_function.train)]
    assert by_function.train.sensitive_features.tolist() == expected
    assert len(by_function.not_covered) == 2
    assert by_mapping.train.sensitive_features.tolist() == [1 - one for one in expected]
    assert by_mapping.not_covered == ()


def test_the_division_is_decided_by_the_seed_and_the_fraction(folder: Path) -> None:
    first, again, other = (image_folder(folder, size=4, seed=seed) for seed in (1, 1, 2))
    assert values(first.train) == values(again.train)
    assert values(first.train) != values(other.train)
    assert len(image_folder(folder, size=4, test_fraction=0.5).test) == 10


def test_grey_images_have_one_channel(folder: Path) -> None:
    assert image_folder(folder, size=8, grey=True).train.x.shape == (16, 1, 8, 8)


def test_nothing_is_left_on_the_disk(folder: Path, cache: Path) -> None:
    before = sorted(folder.parent.rglob("*")), sorted(cache.rglob("*"))
    image_folder(folder, size=8)
    assert (sorted(folder.parent.rglob("*")), sorted(cache.rglob("*"))) == before


def test_a_broken_image_is_named(folder: Path) -> None:
    path = folder / "dog" / "0.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=rf"{path} is not an image that can be decoded"):
        image_folder(folder, size=8)


def test_what_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"folders \['dog'\], which are none of the classes"):
        image_folder(folder, size=8, classes=("cat",))
    with pytest.raises(DataError, match=r"The image cat/0\.png has no group"):
        image_folder(folder, size=8, sensitive={"dog/0.png": "a"})
    with pytest.raises(DataError, match=r"'sensitive' has a value in row 1"):
        image_folder(folder, size=8, sensitive=lambda name: "b", groups=("a",))
    with pytest.raises(ValueError, match="groups names the values of sensitive"):
        image_folder(folder, size=8, groups=("a",))
    with pytest.raises(ValueError, match="test_fraction is 1"):
        image_folder(folder, size=8, test_fraction=1)
    with pytest.raises(ValueError, match="size is 0"):
        image_folder(folder, size=0)
    with pytest.raises(DataError, match="is not a folder"):
        image_folder(tmp_path / "nothing", size=8)
    with pytest.raises(DataError, match=r"has no images in folders.*\.png"):
        image_folder(folder / ".git", size=8)
