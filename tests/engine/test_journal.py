"""Which requests another engine goes on with, in what order, and which one is held to have stopped the engines."""

from __future__ import annotations

from collections.abc import Collection

from octavo.engine.journal import MAX_DEATHS, Journal
from octavo.messages import ChoiceOutput, TokenScore
from tests.engine.fakes import request


def send_all(journal: Journal) -> list[str]:
    """Send what may be sent, with news of each at once; the order in which they went."""
    order = []
    while entries := journal.next_to_send():
        for entry in entries:
            order.append(journal.send(entry).request_id)
            journal.take([ChoiceOutput(entry.message.request_id, 0, [5])])
    return order


def journal_of(*names: str) -> Journal:
    journal = Journal()
    for name in names:
        journal.add(request(name, [1, 2]), 0.0)
    return journal


def die(journal: Journal, in_step: Collection[str]) -> list[str]:
    return [entry.message.request_id for entry in journal.engine_died(in_step.__contains__)]


def test_a_request_is_replayed_with_the_tokens_it_has() -> None:
    journal = journal_of("a")
    journal.send(journal["a"])
    journal.take([ChoiceOutput("a", 0, [7, 8])])
    die(journal, ["a"])
    assert journal.send(journal["a"]).output_token_ids == [[7, 8]]
    assert journal.take([ChoiceOutput("a", 0, [9], finish_reason="length")])
    assert len(journal) == 0


def test_a_choice_that_ended_before_ends_once() -> None:
    journal = Journal()
    journal.add(request("a", [1], n=2), 0.0)
    journal.send(journal["a"])
    journal.take([ChoiceOutput("a", 0, [7], finish_reason="stop"), ChoiceOutput("a", 1, [8])])
    die(journal, ["a"])
    assert journal.send(journal["a"]).output_token_ids == [[7], [8]]
    again = journal.take(
        [
            ChoiceOutput("a", 0, finish_reason="stop"),
            ChoiceOutput("a", 1, [9], finish_reason="stop"),
        ]
    )
    assert [(one.index, one.token_ids) for one in again] == [(1, [9])]


def test_prompt_scores_and_cached_tokens_are_told_once() -> None:
    journal = journal_of("a")
    scores = [TokenScore(i, -1.0, 1) for i in range(5)]
    journal.send(journal["a"])
    journal.take([ChoiceOutput("a", 0, prompt_scores=scores[:3], num_cached_tokens=16)])
    die(journal, ["a"])
    journal.send(journal["a"])
    [again] = journal.take([ChoiceOutput("a", 0, prompt_scores=scores, num_cached_tokens=0)])
    assert again.prompt_scores == scores[3:]
    assert again.num_cached_tokens == 16


def test_who_stops_every_engine_is_found_and_nobody_else() -> None:
    journal = journal_of("a", "b", "poison", "c", "d")
    send = {entry.message.request_id for entry in journal.next_to_send()}
    assert send == {"a", "b", "poison", "c", "d"}
    for entry in journal.next_to_send():
        journal.send(entry)
    journal.take([ChoiceOutput("a", 0, [5]), ChoiceOutput("b", 0, [5]), ChoiceOutput("c", 0, [5])])
    assert die(journal, ["a", "b", "poison"]) == ["poison"]  # "d" was in the queue, "c" preempted
    [alone] = journal.next_to_send()
    assert alone.message.request_id == "poison"
    journal.send(alone)
    assert journal.next_to_send() == []
    journal.add(request("e", [1]), 0.0)
    assert journal.next_to_send() == []  # the rest waits, new ones too
    assert die(journal, ["poison"]) == ["poison"]
    assert journal["poison"].num_deaths == MAX_DEATHS
    journal.pop(journal["poison"])
    assert send_all(journal) == ["a", "b", "c", "d", "e"]


def test_one_that_stops_engines_late_is_found_when_it_is_replayed() -> None:
    journal = journal_of("a", "poison", "b")
    send_all(journal)
    assert die(journal, ["a", "poison", "b"]) == ["a", "poison", "b"]  # any of them
    sent = []
    while entries := journal.next_to_send():
        [entry] = entries
        sent.append(journal.send(entry).request_id)
        if entry.message.request_id == "poison":
            break
        journal.take([ChoiceOutput(entry.message.request_id, 0, [5])])
    assert sent == ["a", "poison"]
    assert die(journal, ["a", "poison"]) == ["poison"]
    assert [e.message.request_id for e in journal.entries() if e.num_deaths >= MAX_DEATHS] == [
        "poison"
    ]


def test_engines_that_are_killed_again_and_again_are_held_against_nobody() -> None:
    journal = journal_of("a", "b", "c")
    for _ in range(20):
        assert sorted(send_all(journal)) == ["a", "b", "c"]
        die(journal, ["a", "b", "c"])
        assert max(entry.num_deaths for entry in journal.entries()) < MAX_DEATHS
