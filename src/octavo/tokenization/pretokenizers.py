"""How text is cut into words before merging: one entry for each name that `tokenizer.ggml.pre` may have.

A cut is a list of regular expressions, each applied to every piece that the one before left; what an expression does not
match stays a piece of its own. Names and behaviour are those of llama.cpp; where it replaces a model's own expression by an
ASCII approximation (tekken, gpt-4o, kimi-k2, tiny_aya), the model's own is used, because the model was trained with it.
Syntax: Oniguruma, where `$` ends any line and `\\s` is Unicode white space.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

DEFAULT: Final = "default"
"""Stands in for a missing name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """One way to cut text.

    `digit_runs` matches runs of digits that are cut into threes from the right before all else. `is_byte_level`: tokens are
    spelled in GPT-2's byte alphabet; else in characters, with <0xXX> for missing ones. `ignores_merges`: a word that is a
    token is taken whole. `adds_bos`: the default where the file is silent.
    """

    splits: tuple[str, ...]
    digit_runs: str | None = None
    is_byte_level: bool = True
    escapes_spaces: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


# --- pieces of expressions --------------------------------------------------------------------------------------

# Spelled out: a case-insensitive group would also match the long s of U+017F.
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_KANA_HAN = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _join(*alternatives: str) -> str:
    return "|".join(alternatives)


def _cased(digits: str, suffix: str = "", without: str = "") -> str:
    """Words cut where lower case meets upper case. `suffix` may follow a word; `without` narrows the letters."""
    upper, lower = (f"[{letters}{without}]" for letters in (_UPPER, _LOWER))
    lead = r"[^\r\n\p{L}\p{N}]?"
    return _join(
        f"{lead}{upper}*{lower}+{suffix}",
        f"{lead}{upper}+{lower}*{suffix}",
        digits,
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _SPACES,
    )


_QWEN2 = _join(_CONTRACTIONS, _WORD, r"\p{N}", _PUNCTUATION, _SPACES)
_LLAMA3 = _join(_CONTRACTIONS, _WORD, r"\p{N}{1,3}", _PUNCTUATION, _SPACES)
_GPT_4O = _cased(r"\p{N}{1,3}", f"{_CONTRACTIONS}?")
_TEKKEN = _cased(r"\p{N}")
_DEEPSEEK_3 = _join(
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    _SPACES,
)
_KIMI_K2 = r"[\p{Han}]+|" + _cased(
    r"\p{N}{1,3}", f"{_CONTRACTIONS}?", without=r"&&[^\p{Han}]"
).replace(r"[\r\n/]*", r"[\r\n]*")
_BLOOM = r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+"
# The cased letters that DeepSeek LLM lists, not quite those of any Unicode version.
_DEEPSEEK_LETTERS = (
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}"
    r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}"
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}"
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}"
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}"
    r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}"
    r"\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}"
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}"
    r"\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}"
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}"
    r"\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+"
)
_DEEPSEEK_HAN = r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+"
# The look-behind changes no match: it spares the search inside every run of spaces, which would be quadratic.
_TRAILING_SPACES = r"(?<!\s)\s+$"
_AFMOE_ASIAN = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}"
    r"\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}"
    r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+"
)
_YOUTU_ASIAN = (
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+"
    r"|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C}\x{3001}-\x{303F}"
    r"\x{FE30}-\x{FE4F}]+"
    r"|[\x{3105}-\x{312F}]+|" + _KANA_HAN
)
# A run of spaces is cut into powers of two. The bound on the first alternative keeps a long run linear.
_JAIS_2 = _join(_CONTRACTIONS, _WORD, r"\p{N}{1,3}", _PUNCTUATION, r"\s{0,4096}[\r\n]+") + "".join(
    rf"|\s{{{n}}}(?!\S)" for n in ("512", "256", "128", "64", "32", "16", "8", "4", "1,2")
) + r"|\s"  # fmt: skip

# --- cuts -------------------------------------------------------------------------------------------------------

_LINES = r"[^\n]+|[\n]+"


def _cut(*splits: str) -> PreTokenizer:
    return PreTokenizer(splits=splits)


_GPT2_CUT = _cut(_GPT2)
_DIGIT_GPT2_CUT = _cut(r"\p{N}", _GPT2)
_QWEN2_CUT = _cut(_QWEN2)
_LLAMA3_CUT = _cut(_LLAMA3)
_LLAMA3_OWN = replace(_LLAMA3_CUT, ignores_merges=True, adds_bos=True)
_GPT_4O_CUT = _cut(_GPT_4O)
_DEEPSEEK_3_CUT = _cut(r"\p{N}{1,3}", _KANA_HAN, _DEEPSEEK_3)
_BLOOM_CUT = _cut(_BLOOM)
_BAILING_CUT = _cut(
    _join(r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])", _WORD, r"\p{N}", _PUNCTUATION)
    + r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_TINY_AYA_CUT = replace(_GPT_4O_CUT, digit_runs=r"(?<!\d)\d+\b")
_SPM_STYLE_CUT = replace(_cut(_LINES), is_byte_level=False, escapes_spaces=True)
_GEMMA4_CUT = replace(_SPM_STYLE_CUT, adds_bos=True)

_CUTS: Final[tuple[tuple[PreTokenizer, str], ...]] = (
    (
        _cut(r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
        DEFAULT,
    ),
    (
        _LLAMA3_OWN,
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    ),
    (_LLAMA3_CUT, "dbrx smaug-bpe chatglm-bpe glm4"),
    (
        replace(
            _cut(r"\p{N}{1,3}", _join(_CONTRACTIONS, _WORD, r"\p{N}+", _PUNCTUATION, _SPACES)),
            ignores_merges=True,
        ),
        "minicpm5",
    ),
    (_cut(_JAIS_2), "jais-2"),
    (
        _cut(
            r"[\r\n]",
            _DEEPSEEK_LETTERS,
            r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
            _TRAILING_SPACES,
            _DEEPSEEK_HAN,
            r"\p{N}+",
        ),
        "deepseek-llm",
    ),
    (_cut(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_HAN, r"\p{N}"), "deepseek-coder"),
    (_DEEPSEEK_3_CUT, "deepseek-v3 hunyuan-dense joyai-llm hy_v4"),
    (
        _cut(
            r"\p{N}{1,3}",
            _KANA_HAN,
            _DEEPSEEK_3.replace(r"[\r\n]*", "").replace(r"\s*[\r\n]+", r"[\r\n]"),
            r"\p{N}",
        ),
        "spark2_5",
    ),
    (
        replace(_cut(_YOUTU_ASIAN, _cased(r"\p{N}", f"{_CONTRACTIONS}?")), ignores_merges=True),
        "youtu",
    ),
    (_cut(r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]"), "falcon"),
    (
        _DIGIT_GPT2_CUT,
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    ),
    (
        _GPT2_CUT,
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum "
        "modern-bert mpt olmo jais trillion granite-docling exaone4",
    ),
    (_QWEN2_CUT, "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"),
    (
        _cut(
            _join(
                _CONTRACTIONS,
                r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",
                r"\p{N}",
                r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",
                _SPACES,
            )
        ),
        "qwen35",
    ),
    (_cut(_join(_WORD, r"\p{N}", _PUNCTUATION, _SPACES)), "ufakzeka"),
    (_cut(_LINES, _QWEN2), "laguna"),
    (
        _cut(_join(_CONTRACTIONS, _WORD, r"\p{N}", r" ?[^\s\p{L}\p{N}\r\n]+", _SPACES)),
        "seed-coder",
    ),
    (_BLOOM_CUT, "bloom poro-chat gpt3-finnish"),
    (_cut(_BLOOM, r"\p{N}"), "viking"),
    (replace(_cut(_TEKKEN), ignores_merges=True, adds_bos=True), "tekken"),
    (
        replace(
            _cut(
                "<sentinel:[0-9]+>",
                "(?:IMGIMG)[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            adds_bos=True,
        ),
        "chameleon",
    ),
    (_GPT_4O_CUT, "gpt-4o llama4 kanana2 talkie minimax-m2"),
    (replace(_GPT_4O_CUT, ignores_merges=True), "granite-embed-multi-97m"),
    (_TINY_AYA_CUT, "tiny_aya cohere2moe"),
    (_cut(_KIMI_K2), "kimi-k2"),
    (PreTokenizer(splits=(), digit_runs=r"\p{N}+"), "superbpe"),
    (_BAILING_CUT, "bailingmoe bailingmoe2 llada-moe"),
    (replace(_cut(_AFMOE_ASIAN, _DEEPSEEK_3), digit_runs=r"\p{N}+"), "afmoe"),
    (
        _cut(
            _join(
                _CONTRACTIONS,
                r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                r"\p{N}",
                r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
            )
            + r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        "exaone-moe",
    ),
    (_GEMMA4_CUT, "gemma4 granite-embed-multi-311m"),
    (_SPM_STYLE_CUT, "sarvam-moe"),
    (replace(_cut(r"\S+"), is_byte_level=False), "whitespace"),
)

PRE_TOKENIZERS: Final[Mapping[str, PreTokenizer]] = MappingProxyType(
    {name: cut for cut, names in _CUTS for name in names.split()}
)
"""Every known value of tokenizer.ggml.pre."""
