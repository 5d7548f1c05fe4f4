"""The packed layout of each format, pinned: files of packed weights live longer than a version."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from octavo.dtypes import QuantFormat
from octavo.ops.native.backend import NativeBackend
from octavo.ops.native.packed import PACKED_LAYOUT, held_bytes
from tests.tiny_models import random_tensor

# A change here is a change of the layout: raise kPackedLayout in csrc/formats/packed.h with it.
LAYOUT = 2
DIGESTS = {
    QuantFormat.F32: "8d741048e7cfa534",
    QuantFormat.F16: "882e0391908038dc",
    QuantFormat.Q4_0: "b24ef9dd54ce6326",
    QuantFormat.Q4_1: "aacd0111c1d69c06",
    QuantFormat.Q5_0: "a948ac90ff77833d",
    QuantFormat.Q5_1: "393d7d9131613e85",
    QuantFormat.Q8_0: "509d0b691ee6e676",
    QuantFormat.Q2_K: "2b3e569a3d477fb9",
    QuantFormat.Q3_K: "69bab0207512cc54",
    QuantFormat.Q4_K: "05807842543d0021",
    QuantFormat.Q5_K: "bfe5843bfda82273",
    QuantFormat.Q6_K: "44bdfd3d9a9e8b38",
    QuantFormat.IQ4_NL: "58d7e6dcc765484f",
    QuantFormat.IQ4_XS: "80b1f4ac193576eb",
    QuantFormat.BF16: "13a17c5f1da18a78",
}


@pytest.mark.parametrize("format_", DIGESTS, ids=lambda f: f.name)
def test_a_format_is_packed_as_its_layout_says(format_: QuantFormat) -> None:
    tensor = random_tensor("w", (40, 512), format_, np.random.default_rng(1))
    packed: list[np.ndarray] = []
    backend = NativeBackend(2)
    ops = backend.packing_ops(lambda tensor, held, data: packed.append(data.copy()))
    ops.weight(tensor)
    assert packed[0].size == held_bytes(tensor.shape, format_)
    digest = hashlib.sha256(packed[0].tobytes()).hexdigest()[:16]
    assert (PACKED_LAYOUT, digest) == (LAYOUT, DIGESTS[format_])
    backend.close()
