import zipfile

import numpy as np
import pytest

from jaxpt.data.batches.files import FILE_MEMBERS, Reader, packed, unpacked, write_members
from jaxpt.errors import UserError


def batch(ids, weights, scores):
    return {
        "ids": np.asarray(ids, np.int32),
        "weights": np.asarray(weights, np.float32),
        "scores": np.asarray(scores, np.float32),
    }


FEATURES = {"ids": ((2,), "int32"), "weights": ((2,), "float32"), "scores": ((), "float32")}


@pytest.mark.parametrize(
    ("most", "kind"),
    [(255, "u1"), (256, "u2"), (65_535, "u2"), (65_536, "u4"), (2**31 - 1, "u4")],
)
def test_ids_have_the_smallest_type_that_holds_them(most, kind):
    given = batch([[0, most], [1, 2]], [[0, 1], [1, 0]], [0.5, 2.0])
    rows = packed(given)
    assert {name: rows.dtype[name].base.str[1:] for name in rows.dtype.names} == {
        "ids": kind, "weights": "u1", "scores": "f4",
    }  # fmt: skip
    again = unpacked(rows, FEATURES)
    assert again.keys() == given.keys()
    for name, value in given.items():
        assert again[name].dtype == value.dtype and again[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("value", [-0.0, np.nan, np.inf, 0.1, -1.5, 1e30, 3e9, -2.0])
def test_numbers_keep_their_bits(value):
    given = batch([[-1, 5]], [[1, 0]], [value])
    assert unpacked(packed(given), FEATURES)["scores"].tobytes() == given["scores"].tobytes()


@pytest.fixture
def written(tmp_path):
    """(folder, sizes of files, members) of a little more than one file."""
    rng = np.random.default_rng(0)
    members = [packed(batch(rng.integers(0, 999, (3, 2)), rng.integers(0, 2, (3, 2)), rng.random(3)))
               for _ in range(FILE_MEMBERS + 2)]  # fmt: skip
    return tmp_path, write_members(tmp_path, "train", members), members


def test_members_are_found_by_their_number_in_any_order(written):
    folder, sizes, members = written
    assert sorted(sizes) == ["train-00000.npz", "train-00001.npz"]
    reader = Reader(folder, "train", sizes)
    for number in (FILE_MEMBERS + 1, 0, FILE_MEMBERS - 1, FILE_MEMBERS, 7):
        assert reader.member(number).tobytes() == members[number].tobytes()
    with np.load(folder / "train-00001.npz") as file:  # NumPy reads them as well
        assert file[f"{FILE_MEMBERS:06d}"].tobytes() == members[FILE_MEMBERS].tobytes()
    with pytest.raises(UserError, match=r"train-00001\.npz: is damaged .*There is no item named"):
        reader.member(FILE_MEMBERS + 2)


def test_the_same_rows_are_the_same_bytes(written, tmp_path):
    folder, sizes, members = written
    (tmp_path / "again").mkdir()
    assert write_members(tmp_path / "again", "train", members) == sizes
    for file in sizes:
        assert (folder / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_a_file_that_is_cut_short_or_missing_is_told_at_once(written):
    folder, sizes, _ = written
    file = folder / "train-00001.npz"
    content = file.read_bytes()
    file.write_bytes(content[:-30])
    with pytest.raises(UserError, match=rf"train-00001.npz: has {len(content) - 30:,} bytes, was written with "):
        Reader(folder, "train", sizes)
    file.unlink()
    with pytest.raises(UserError, match=r"train-00001\.npz: is missing, was written with"):
        Reader(folder, "train", sizes)


def test_no_flip_of_a_bit_is_silent(written):
    """Each byte of a small file, one bit of it: what is read is what was written, or an error names the file."""
    folder, sizes, members = written
    file = folder / "train-00001.npz"
    content, rng, told = file.read_bytes(), np.random.default_rng(1), 0
    with zipfile.ZipFile(file) as whole:
        assert len(whole.namelist()) == 2
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        reader = Reader(folder, "train", sizes)
        for number in (FILE_MEMBERS, FILE_MEMBERS + 1):
            try:
                assert reader.member(number).tobytes() == members[number].tobytes()
            except UserError as error:
                assert "train-00001.npz: is damaged (" in str(error)
                told += 1
    assert told > len(content) // 2  # the rest are dates, versions and the like
