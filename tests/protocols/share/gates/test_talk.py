"""A party's half of a conversation: its turns hold all that can be said, in order, and what does not fit is refused."""

from __future__ import annotations

import pytest
import torch
from tests.protocols.share.gates.sealing import converse

from bilateral.errors import MalformedMessageError
from bilateral.protocols.share.gates.talk import Hear, Judge, Speaker, Tell


def words(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def counting(*script):
    """Work that tells and hears one word at a time: a number is told, "?" is heard. Returns all that it heard."""
    heard = []
    for step in script:
        if step == "?":
            heard.append(int((yield Hear(f"word {len(heard)}", (1,)))))
        else:
            yield Tell(words(step))
    return heard


def told(speaker):
    return [int(part) for part in speaker.take_told()]


def test_a_turn_holds_all_that_can_be_said_before_the_party_must_listen():
    speaker = Speaker(counting(1, 2, 3, "?", 4, "?", "?", 5), "bela")
    assert told(speaker) == [1, 2, 3]
    speaker.hear([words(10)])
    assert told(speaker) == [4]
    speaker.hear([words(11), words(12)])
    assert told(speaker) == [5]
    assert speaker.is_done and speaker.result == [10, 11, 12]
    speaker.expect_end()


def test_what_is_much_may_leave_before_the_party_must_listen():
    """In order, each part once, and small parts together."""
    left = []
    large = torch.arange(1 << 12)

    def work():
        yield Tell(words(1))
        yield Tell(large)
        yield Tell(words(2))
        yield Hear("word", (1,))
        yield Tell(large + 1)

    speaker = Speaker(work(), "bela", early=left.append)
    assert [[part.numel() for part in parts] for parts in left] == [[1, 1 << 12]]
    assert told(speaker) == [2]
    speaker.hear([words(7)], must_lead=False)
    assert speaker.is_done and torch.equal(left[1][0], large + 1)
    assert speaker.take_told() == ()


def test_a_turn_leads_over_several_answers_at_once():
    speaker = Speaker(counting(1, "?", 2, "?", 3, "?", 4), "bela")
    speaker.hear([words(10), words(11)])
    assert told(speaker) == [1, 2, 3]
    assert not speaker.is_done
    speaker.hear([words(12)])
    assert told(speaker) == [4]


def test_what_was_told_is_taken_once():
    speaker = Speaker(counting(1, "?"), "bela")
    assert told(speaker) == [1]
    assert told(speaker) == []


def test_two_works_that_tell_and_hear_in_one_order_come_to_their_ends():
    results, first, second = converse(counting(1, "?", 2, "?"), counting(7, "?", "?", 8))
    assert results == ([7, 8], [1, 2])
    assert ([int(part) for part in first], [int(part) for part in second]) == ([1, 2], [7, 8])


def test_work_that_hears_nothing_is_done_at_once():
    speaker = Speaker(counting(1), "bela")
    assert speaker.is_done
    assert speaker.judge is None
    speaker.expect_end()


@pytest.mark.parametrize(
    "part",
    [words(), words(1, 2), words(1)[None], torch.tensor(1), words(1).to(torch.int32), words(1).double(), words(1) > 0],
    ids=["empty", "longer", "deeper", "scalar", "int32", "float64", "bool"],
)
def test_a_part_of_another_shape_or_type_is_refused_by_the_name_of_who_sent_it_and_of_the_part(part):
    speaker = Speaker(counting("?", "?", 1), "bela")
    with pytest.raises(MalformedMessageError, match="from bela: expected `word 1`"):
        speaker.hear([words(10), part])


def test_parts_beyond_the_end_are_refused():
    with pytest.raises(MalformedMessageError, match="from bela: 2 parts more"):
        Speaker(counting("?"), "bela").hear([words(1), words(2), words(3)])
    with pytest.raises(MalformedMessageError, match="from bela: 1 parts more"):
        Speaker(counting(5), "bela").hear([words(1)])


@pytest.mark.parametrize("num_parts", [0, 1])
def test_a_turn_that_leads_nowhere_is_refused_so_that_nobody_goes_on_for_ever(num_parts):
    """Two parties who both have nothing to say would send each other empty turns without end."""
    speaker = Speaker(counting(1, "?", "?", 2), "bela")
    speaker.take_told()
    with pytest.raises(MalformedMessageError, match=f"from bela: it ends before `word {num_parts}`"):
        speaker.hear([words(9)] * num_parts)


def test_what_comes_before_a_party_can_say_anything_need_not_lead_anywhere():
    speaker = Speaker(counting("?", "?", 2), "bela")
    speaker.hear([words(9)], must_lead=False)
    assert told(speaker) == []
    speaker.hear([words(8)])
    assert told(speaker) == [2]


def test_an_end_that_comes_too_early_or_leaves_words_over_is_no_end():
    with pytest.raises(MalformedMessageError, match="bela did not finish"):
        Speaker(counting("?"), "bela").expect_end()


def judging():
    yield Tell(words(1))
    product, bit = yield Judge(words(20, 21))
    heard = yield Hear("after", (1,))
    product2, _ = yield Judge(heard)
    return product, bit, heard, product2


def test_work_waits_for_its_judge_and_keeps_what_it_heard_meanwhile():
    speaker = Speaker(judging(), "bela")
    assert torch.equal(speaker.judge.values, words(20, 21))
    speaker.hear([words(5)])  # the other goes on; this party must not
    assert torch.equal(speaker.judge.values, words(20, 21))
    speaker.told_by_judge(words(30, 31), words(1, 0))
    assert torch.equal(speaker.judge.values, words(5))
    speaker.told_by_judge(words(50), words(1))
    assert speaker.judge is None
    assert [part.tolist() for part in speaker.result] == [[30, 31], [1, 0], [5], [50]]
    speaker.expect_end()


def test_parts_that_wait_behind_a_judgement_are_checked_when_they_are_looked_at():
    speaker = Speaker(judging(), "bela")
    speaker.hear([words(5, 6)])
    with pytest.raises(MalformedMessageError, match="from bela: expected `after`"):
        speaker.told_by_judge(words(30, 31), words(1, 0))


def test_words_left_over_behind_a_judgement_are_refused_at_the_end():
    speaker = Speaker(judging(), "bela")
    speaker.hear([words(5), words(6)])
    speaker.told_by_judge(words(30, 31), words(1, 0))
    speaker.told_by_judge(words(50), words(1))
    with pytest.raises(MalformedMessageError, match="bela did not finish its part of the circuit, or said too much"):
        speaker.expect_end()
