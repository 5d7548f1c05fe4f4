"""Native tokenizer code. Texts are UTF-8 bytes; ids are int32. Objects are immutable in use and may be shared."""

import numpy as np
from numpy.typing import NDArray

class SpecialMatcher:
    """Finds special tokens in text: longer ones first, each left to right, in what longer ones left over."""

    def __init__(self) -> None: ...
    def add(self, text: bytes, token_id: int, always: bool, strip: int) -> None:
        """Add a token. `always`: also found without parse_special. `strip`: 1 swallows white space before, 2 after."""

    def split(self, text: bytes, parse_special: bool, mark: bytes) -> list[int | str]:
        """Special tokens as ids, the text between them as str, without its marks. An empty mark marks nothing."""

class SpmModel:
    """A scored vocabulary, merged best pair first.

    Raises: ValueError if there are fewer scores or types than tokens.
    """

    def __init__(
        self,
        tokens: list[str],
        scores: NDArray[np.float32],
        types: NDArray[np.uint8],
        add_space_prefix: bool,
        unknown_id: int,
    ) -> None: ...
    def encode(
        self, text: bytes, specials: SpecialMatcher, parse_special: bool, mark: bytes
    ) -> list[int]:
        """Ids without BOS and EOS. Raises: ValueError above 1 GiB of text."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token adds to the text. Raises: IndexError if there is no such token."""
