"""Equal bits and perplexities, with one int8 term and with two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from scripts import prove_a
from scripts.proving.rows import SMALL, Paths, Row, skipped
from tests.e2e import measures

from octavo import LLM
from octavo.api.perplexity import Perplexity, measure_perplexity

_NUM_PROMPTS, _MAX_TOKENS = 8, 24
_CTX = 512
_NUM_WINDOWS = 1 if SMALL else 4
"""Fewer tokens will not do: what f16 keys and values round away alone is 0.03 % of a perplexity over 64."""


def exactness(paths: Paths) -> Iterator[Row]:
    """Bit-equal ids, whatever is decoded together. With one term this is prove-A's again, and so left out where it is short."""
    for name in ("smollm2",) if SMALL else tuple(paths):
        for precision in ("int8x2",) if SMALL else ("int8", "int8x2"):
            for is_seeded in (True,) if SMALL else (False, True):
                yield from exact_rows(
                    paths, name, num_prompts=_NUM_PROMPTS, max_tokens=_MAX_TOKENS,
                    is_seeded=is_seeded, activation_precision=precision,
                )  # fmt: skip


def exact_rows(
    paths: Paths, name: str, *, num_prompts: int, max_tokens: int, is_seeded: bool, **options: Any
) -> Iterator[Row]:
    """A row for each variant: the prompts whose ids differ from each alone. `options` are those of `LLM`."""
    kind = ", ".join(["seeded ids" if is_seeded else "greedy ids", *options.values(), name])
    for variant, num_different, note in measures.exactness_variants(
        paths[name], num_prompts, max_tokens, is_seeded=is_seeded, **options
    ):
        yield Row(
            f"{kind}: {variant} = each alone",
            f"{num_different} of {num_prompts} differ" + (f" ({note})" if note else ""),
            "0 differ",
            num_different == 0,
        )


def perplexity(paths: Paths) -> Iterator[Row]:
    """The bars of prove-A."""
    if SMALL:
        yield skipped("perplexity, GPL-3, 8 x 512", "prove-A does", "as in prove-A")
        return
    yield from prove_a.perplexity(dict(paths))


def two_terms(paths: Paths) -> Iterator[Row]:
    """int8x2 against float32 activations: the same text on the native and the reference backend."""
    native = _perplexity(paths, activation_precision="int8x2")
    reference = _perplexity(paths, backend="reference")
    difference = native.perplexity / reference.perplexity - 1
    yield Row(
        f"perplexity of smollm2, int8x2 / float32, {_NUM_WINDOWS} x {_CTX}",
        f"{native.perplexity:.4f} : {reference.perplexity:.4f} = {difference:+.4%}",
        "within 0.05%",
        abs(difference) <= 0.0005 and native.num_tokens == _NUM_WINDOWS * _CTX // 2,
    )


def _perplexity(paths: Paths, **options: object) -> Perplexity:
    text = prove_a.GPL_3.read_text()[:20000]
    with LLM(paths["smollm2"], max_model_len=_CTX, **options) as llm:  # type: ignore[arg-type]
        return measure_perplexity(llm, text, ctx=_CTX, max_windows=_NUM_WINDOWS)
