"""Questions: what is asked, what the model holds for likely, and who is right."""

import pytest
import torch

from minigpt.data.tokenizer import Tokenizer
from minigpt.evaluation.questions import Question, encode_pair, encode_questions, judge, read_questions, score_pairs
from minigpt.faults import UserFault


def plain_score(model, context: list[int], following: list[int]) -> tuple[float, bool]:
    """Token by token."""
    total, greedy, tokens = 0.0, True, list(context)
    for token in following:
        logits = model(torch.tensor([tokens[-model.config.block_size :]]))[0, -1].double()
        total, greedy = total + logits.log_softmax(-1)[token].item(), greedy and logits.argmax().item() == token
        tokens.append(token)
    return total, greedy


def test_likelihoods_are_those_of_a_plain_loop(byte):
    texts = [("how mu", "ch"), ("", "wo"), ("w", "ood w"), ("how much", " "), ("if ", "hozoom")]
    pairs = [encode_pair(byte.tokenizer, *text) for text in texts]
    assert pairs[1][0] == [byte.tokenizer.eot]
    with torch.inference_mode():
        for (score, greedy), pair in zip(score_pairs(byte.model, pairs), pairs, strict=True):
            wanted, right = plain_score(byte.model, *pair)
            assert (score, greedy) == (pytest.approx(wanted, abs=1e-4), right)


BPE = Tokenizer("bpe", [*(bytes([b]) for b in range(256)), b" c", b" ca", b" cat", b"th", b"the"])


@pytest.mark.parametrize(
    ("context", "following", "cut"),
    [
        ("the", " cat", ("the", " cat")),
        ("the ", "cat", ("the", " cat")),  # lm-eval does so, too
        ("the \n", "cat", ("the \n", "cat")),
        ("th", "e cat", ("", "the cat")),  # the token that crosses the border is predicted
        ("", "the", ("", "the")),
    ],
)
def test_the_border_is_where_tokens_have_theirs(context, following, cut):
    before, behind = encode_pair(BPE, context, following)
    assert (BPE.decode(before), BPE.decode(behind)) == cut
    assert before
    assert behind


def test_who_is_right_plain_and_by_length():
    questions = [
        Question("", ["ab", "abcdefgh"], "", 0),
        Question("", ["ab", "abcdefgh"], "", 1),
        Question("", ["é", "e"], "x", 0),
        Question("q", ["open"], "", 0),
        Question("q", ["open"], "", 0),
    ]
    scores = [(-2.0, True), (-4.0, False)] * 2 + [(-3.0, True), (-2.5, True)] + [(-1.0, True), (-9.0, False)]
    answers = judge(questions, scores)
    assert answers.plain.tolist() == [True, False, False, True, False]
    assert answers.normalised.tolist() == [False, True, True, True, False]  # é is two bytes
    assert answers.figures() == {
        "questions": 5, "accuracy": 0.4, "accuracy_normalised": 0.6, "chance": pytest.approx(0.3)
    }  # fmt: skip


def test_a_choice_longer_than_the_context_is_named(byte, tmp_path):
    questions = [Question("a", ["b", "c"], "", 0), Question("a", [" woodchuck", "b"], "", 0)]
    with pytest.raises(UserFault, match=r"question 2: ' woodchuck' is 10 tokens, and the model's context is 8"):
        encode_questions(byte.tokenizer, questions, 8, tmp_path)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: Expecting"),
        ("[]", "line 2: "),
        ('{"question": "x"}', 'line 2: wanted {"context": TEXT'),
        ('{"context": 5, "answer": "x"}', 'wanted {"context": TEXT'),
        ('{"context": "x"}', 'wanted {"context": TEXT'),
        ('{"context": "x", "choices": ["a"], "answer": 0}', 'wanted {"context": TEXT'),
        ('{"context": "x", "choices": ["a", ""], "answer": 0}', 'wanted {"context": TEXT'),
        ('{"context": "x", "choices": ["a", "b"], "answer": 2}', "0 to 1, got 2"),
        ('{"context": "x", "choices": ["a", "b"], "answer": "a"}', "0 to 1, got 'a'"),
        ('{"context": "x", "choices": ["a", "b"], "answer": true}', "got True"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, says):
    path = tmp_path / "q.jsonl"
    path.write_text('{"context": "x", "answer": "y"}\n' + line + "\n")
    with pytest.raises(UserFault) as caught:
        read_questions(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
