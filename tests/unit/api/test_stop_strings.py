from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.api.stop_strings import StopMatcher


def run(
    pieces: list[str], stops: list[str], *, keeps_stop: bool = False
) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, keeps_stop=keeps_stop)
    shown = []
    for piece in pieces:
        text, stop = matcher.push(piece)
        shown.append(text)
        if stop is not None:
            return shown, stop
    return [*shown, matcher.flush()], None


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first end position at which a stop string is complete; the longest of those."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_any_cut_of_a_text_gives_what_the_whole_text_gives(
    pieces: list[str], stops: list[str]
) -> None:
    shown, stop = run(pieces, stops)
    text, expected = naive("".join(pieces), stops)
    assert ("".join(shown), stop) == (text, expected)


def test_the_beginning_of_a_stop_string_is_held_back_and_no_more() -> None:
    matcher = StopMatcher(["FGHIJ"])
    assert matcher.push("ABC") == ("ABC", None)
    assert matcher.push("DEFGH") == ("DE", None)
    assert matcher.push("X") == ("FGHX", None)
    assert matcher.push("EF") == ("E", None)
    assert matcher.flush() == "F"


def test_a_stop_string_inside_one_token_cuts_the_token() -> None:
    assert run(["one STOP two"], ["STOP"]) == (["one "], "STOP")


def test_the_stop_string_is_kept_when_asked_for() -> None:
    assert run(["a", "b", "c"], ["bc"], keeps_stop=True) == (["a", "", "bc"], "bc")


def test_a_stop_string_is_ordinary_text_while_it_may_not_stop() -> None:
    matcher = StopMatcher(["ab"])
    assert matcher.push("ab", may_stop=False) == ("ab", None)
    assert matcher.push("a", may_stop=False) == ("", None)
    assert matcher.push("b") == ("", "ab")
