"""objective=grpo: questions and answers as functions of the seed, the reward, the gradient, and runs that continue."""

import pytest
import torch

from minigpt.config.schema import ModelConfig, TrainConfig
from minigpt.data.chat import tasks
from minigpt.data.chat.roles import END, with_roles
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault
from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT
from minigpt.model.loss import weighted_loss_sum
from minigpt.training import grpo
from minigpt.training.grpo import CheckedQuestion, Questions, advantages, answered, reward, weighted, write_answers
from tests.promises.test_lora_and_grpo import begins_low

TOKENIZER = with_roles(build_tokenizer("byte"))
CHOICES = Choices("cpu", 1, "fp64", False, "explicit", micro_batch=12, accumulate=1, validation_batch=4, threads=1)


def tiny_gpt() -> GPT:
    torch.manual_seed(3)
    config = ModelConfig(n_layer=1, n_head=2, n_embd=16, block_size=64, attention="rotary")
    gpt = GPT(config, TOKENIZER.vocab_size, kernel="explicit").double()
    with torch.no_grad():
        for parameter in gpt.parameters():
            parameter.mul_(8)  # so that its answers are not all alike
    return gpt


def question(number: int, asked: str, answer: str) -> CheckedQuestion:
    special = TOKENIZER.special
    return CheckedQuestion(number, [special["<|user|>"], *TOKENIZER.encode(asked), special["<|assistant|>"]], answer)


# --- the reward ---

END_TOKEN, USER, ASSISTANT = (TOKENIZER.special[name] for name in (END, "<|user|>", "<|assistant|>"))


@pytest.mark.parametrize(
    ("answer", "earned"),
    [
        ([*b"7 12", END_TOKEN], 1.0),
        ([*b"7 13", END_TOKEN], 0.15),
        ([*b"7 1", END_TOKEN], 0.15),  # three of four characters
        ([*b" 7 12", END_TOKEN], 0.0),
        ([END_TOKEN], 0.0),
        ([*b"7 12"], 0.0),  # never said that it was done
        ([*b"7 12", *b"!"], 0.0),
        ([*b"7 12", USER], 0.0),  # another end than the assistant's
        ([*b"7 12", TOKENIZER.eot], 0.0),
        ([*b"7 12", *b"<|end|>"], 0.0),  # text is no control token
        ([*b"7 12", *b"<|end|>", END_TOKEN], 0.2),
        ([*b"7 12", END_TOKEN, *b" 7"], 0.0),
        ([*b"3", USER, ASSISTANT, *b"7 12", END_TOKEN], 0.0),  # a turn that it made up
    ],
)
def test_the_right_answer_and_its_end_earn_one_and_its_beginning_a_part(answer, earned):
    assert reward(TOKENIZER, question(0, "sort 12 7", "7 12"), answer) == pytest.approx(earned)


def test_nothing_is_written_behind_the_end_of_an_answer_nor_much_beyond_the_right_one(monkeypatch):
    scripts = {"a": [*b"7 12", END_TOKEN, *b"no"], "b": [*b"7", USER, *b"12"], "c": [*b"7 12 13 14 15"]}
    asked = [question(number, name, "7 12") for number, name in enumerate(scripts)]
    begins = {tuple(each.tokens): scripts[name] for each, name in zip(asked, scripts, strict=True)}
    gpt = tiny_gpt()

    def scripted(gpt, *, vocab_size):
        texts = []  # in place of a cache: what the rows hold is followed by hand

        def forward(tokens, lengths, cache):
            rows = [tuple(row[:length]) for row, length in zip(tokens.tolist(), lengths, strict=True)]
            texts[:] = rows
            logits = torch.full((len(rows), vocab_size), -100.0)
            for place, row in enumerate(rows):
                begin = next(begin for begin in begins if row[: len(begin)] == begin)
                logits[place, begins[begin][len(row) - len(begin)]] = 100.0
            return logits

        return forward

    monkeypatch.setattr(grpo, "gpt_forward", scripted)
    monkeypatch.setattr(gpt, "new_cache", None)
    answers = [text[len(each.tokens) :] for each, text in zip(asked, written(gpt, asked, answers=1), strict=True)]
    assert answers == [[*b"7 12", END_TOKEN], [*b"7", USER], [*b"7 12 "]]
    assert [reward(TOKENIZER, each, answer) for each, answer in zip(asked, answers, strict=True)] == [1.0, 0.0, 0.0]


def written(gpt: GPT, asked: list[CheckedQuestion], *, answers: int = 4, seed: int = 5) -> list[list[int]]:
    return write_answers(gpt, asked, TOKENIZER, answers=answers, seed=seed)


# --- questions and answers are functions of the seed ---


def batches(accumulate: int = 1, micro_batch: int = 16, **options) -> Questions:
    config = TrainConfig(seed=options.pop("seed", 1))
    config.objective.answers = 4
    devices = options.pop("devices", 1)
    choices = Choices("cpu", devices, "fp32", False, "explicit", micro_batch, accumulate, validation_batch=4, threads=1)
    return Questions(config, choices, TOKENIZER, **options)


def test_a_step_asks_the_same_questions_for_any_micro_batch_and_number_of_devices():
    whole = batches()[3]
    assert [each.number for each in whole] == [12, 13, 14, 15]
    assert batches(accumulate=2, micro_batch=8)[6] + batches(accumulate=2, micro_batch=8)[7] == whole
    assert [each for rank in range(2) for each in batches(devices=2, micro_batch=8, rank=rank)[3]] == whole
    assert next(iter(batches(start_step=3))) == whole == batches(skipped_batches=[(1, 2)])[1]
    assert batches(seed=2)[3] != whole
    with pytest.raises(UserFault, match=r"6 sequences does not hold whole groups .*trainer\.micro_batch=4"):
        batches(micro_batch=6, accumulate=2)
    with pytest.raises(UserFault, match=r"2 sequences does not hold whole groups .*trainer\.micro_batch=4"):
        batches(micro_batch=2, accumulate=1, devices=2)


def test_questions_are_those_of_the_training_part():
    for task, words in (("sort7", 7), ("reverse9", 1)):
        for number in range(30):
            asked, answer = tasks.question(task, 1, number)
            own = asked.split()[1:]
            assert len(own) == words
            assert answer == (own[0][::-1] if task == "reverse9" else " ".join(sorted(own)))
            assert tasks.part_of(own[0] if task == "reverse9" else answer) == "train"
    assert tasks.question("sort7", 1, 0) != tasks.question("sort7", 2, 0)


def test_answers_differ_follow_from_the_seed_and_are_the_same_alone_as_in_company():
    gpt, asked = tiny_gpt().train(), [question(number, f"sort {number}", "x" * 9) for number in range(3)]
    together = written(gpt, asked)
    assert gpt.training
    assert len({tuple(text) for text in together}) > 6
    assert written(gpt, asked[1:2]) == together[4:8]
    assert written(gpt, asked, seed=6) != together


# --- the gradient ---


def test_the_gradient_is_that_of_reinforce_written_out_by_hand(module_of):
    gpt = tiny_gpt()
    asked = [question(number, text, "x" * 20) for number, text in enumerate(("sort 3 1", "reverse planet", "a"))]
    texts, first = written(gpt, asked), [len(each.tokens) for each in asked for _ in range(4)]
    assert len({len(text) for text in texts}) > 3
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1])
    module = module_of(gpt, TrainConfig(), CHOICES)
    loss, weight = module.loss_of(weighted(texts, first, advantages(rewards, 4)))
    (loss / weight).backward()  # as `scale` divides a step's gradients
    ours = [parameter.grad.clone() for parameter in gpt.parameters()]
    gpt.zero_grad()
    for number, (text, begin) in enumerate(zip(texts, first, strict=True)):
        group = rewards[number // 4 * 4 : number // 4 * 4 + 4].tolist()
        log_p = gpt(torch.tensor([text[:-1]]))[0].log_softmax(-1)
        said = sum(log_p[place - 1, text[place]] for place in range(begin, len(text)))
        (-(rewards[number].item() - sum(group) / 4) * said / len(texts)).backward()
    assert max(parameter.grad.abs().max() for parameter in gpt.parameters()) > 1e-3
    for parameter, own in zip(gpt.parameters(), ours, strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-10, atol=1e-14)


def test_what_is_rewarded_becomes_likelier(monkeypatch, module_of):
    monkeypatch.setattr(grpo, "reward", begins_low)
    gpt, config, earned = tiny_gpt().train(), TrainConfig(), []
    optimizer = torch.optim.AdamW(gpt.parameters(), lr=0.02)
    module = module_of(gpt, config, CHOICES)
    for step in range(12):
        asked = [question(4 * step + number, f"{number}", "x") for number in range(4)]
        batch, mean = answered(gpt, asked, module.job, CHOICES)
        module.loss_of(batch)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        earned.append(mean)
    assert sum(earned[-3:]) / 3 > 0.9 > 0.7 > earned[0]


def test_weights_that_are_not_finite_are_the_guards_matter(module_of):
    """They ended the run with a sentence on a checkpoint that nobody had read."""
    gpt = tiny_gpt()
    with torch.no_grad():
        gpt.token_embedding.weight.fill_(torch.nan)
    asked = [question(0, "sort 12 7", "7 12")]
    config = TrainConfig()
    config.objective.answers = 4
    batch, earned = answered(gpt, asked, module_of(gpt, config, CHOICES).job, CHOICES)
    assert earned == 0.0
    assert batch.weights.isnan().any()  # also where the logits overflowed behind the last token that is learned
    loss = weighted_loss_sum(gpt, batch.tokens, batch.targets, batch.weights)
    assert loss.isnan()
