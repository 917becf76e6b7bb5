"""What is sent arrives as it was; what does not fit is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmes.engines import wire


@st.composite
def entries(draw):
    """Plain entries, entries of which single values are sent, and entries of which whole channels
    are."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    tensors = {}
    for i in range(draw(st.integers(1, 4))):
        shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
        t = torch.randn(shape, generator=generator)
        kind, share = draw(st.sampled_from(["plain", "values", "channels"])), draw(st.floats(0, 1))
        if kind != "plain":
            marked = shape if kind == "values" else [shape[0], *(1 for _ in shape[1:])]
            mask = torch.rand(marked, generator=generator) < share
            tensors[f"{i}#mask"] = mask
            t = torch.where(mask, t, 0)
        tensors[str(i)] = t
    return tensors


@given(entries())
@settings(max_examples=80, deadline=None)
def test_there_and_back(tensors):
    packed = wire.pack(tensors)
    back = wire.unpack(packed, tensors)
    assert back.keys() == tensors.keys()
    assert all(
        torch.equal(back[name], t) and back[name].dtype == t.dtype for name, t in tensors.items()
    )
    # each byte that is sent is counted
    assert sum(t.nbytes for t in packed.values()) == int(wire.size(tensors))


@pytest.mark.parametrize(
    ("marked", "takes"),
    [(0, 0), (1, 8), (4095, 32760), (4223, 33784), (4224, 33792), (4225, 33792), (8192, 33792)],
)
def test_the_bits_beside_dense_values_are_counted(marked, takes):
    """8,192 float32: with an index each, or all of them and 1,024 bytes of bits, whichever is
    shorter."""
    values = torch.arange(8192) < marked
    tensors = {"a": values.float(), "a#mask": values}
    assert (int(wire.size(tensors)), sum(t.nbytes for t in wire.pack(tensors).values())) == (
        takes,
        takes,
    )
    stacked = {name: t.expand(2, 3, -1) for name, t in tensors.items()}
    assert wire.size(stacked, 2).tolist() == [[takes] * 3] * 2


LIKE = {"w": torch.zeros(4, 2), "a": torch.zeros(40), "a#mask": torch.zeros(40, dtype=torch.bool)}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"w": torch.zeros(2, 4)}, "instead of"),
        ({"w": torch.zeros(4, 2, dtype=torch.float64)}, "instead of"),
        ({"more": torch.zeros(1)}, "more is not known"),
        ({"w": None}, "w is missing"),
        ({"a#index": torch.tensor([3, 40], dtype=torch.int32)}, "outside"),
        ({"a#index": torch.tensor([-1, 4], dtype=torch.int32)}, "outside"),
        ({"a#index": torch.tensor([3, 4])}, "no index"),
        ({"a#values": torch.zeros(3)}, "3 values instead of 2"),
        ({"a#values": None}, "0 values instead of 2"),
        ({"a#index": None}, "a#bits is missing"),
    ],
)
def test_what_does_not_fit(change, says):
    packed = {
        "w": torch.zeros(4, 2), "a#values": torch.ones(2), "a#index": torch.tensor([3, 5], dtype=torch.int32)
    }  # fmt: skip
    assert wire.unpack(packed, LIKE)["a"].nonzero().flatten().tolist() == [3, 5]
    changed = {name: t for name, t in (packed | change).items() if t is not None}
    with pytest.raises(ValueError, match=says):
        wire.unpack(changed, LIKE)
