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
LAYOUT = 1
DIGESTS = {
    QuantFormat.F32: "8d741048e7cfa534",
    QuantFormat.F16: "882e0391908038dc",
    QuantFormat.Q4_0: "5f2387e216e717be",
    QuantFormat.Q4_1: "bea0a877af2ec8da",
    QuantFormat.Q5_0: "05923232459d8f5e",
    QuantFormat.Q5_1: "f51df4c7cde33ef7",
    QuantFormat.Q8_0: "0ae97486e825f02c",
    QuantFormat.Q2_K: "799589c6f95d6b07",
    QuantFormat.Q3_K: "a89d9a3a07330784",
    QuantFormat.Q4_K: "71966735e6d2bfd5",
    QuantFormat.Q5_K: "775c78677edd8061",
    QuantFormat.Q6_K: "2feea737fc23af8b",
    QuantFormat.IQ4_NL: "9fad99ef71787780",
    QuantFormat.IQ4_XS: "cfdb56c17171c988",
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
