"""GRPO: the model answers questions, and answers that were right become likelier than those that were wrong.

A step asks P questions and lets the model write G answers to each, with the weights as they are. The reward R of an
answer is 1 if it is right to the last character, its end included, else at most PART; its advantage A is R minus the
mean of the G rewards of its question. The loss is

    L = - 1 / (P G)  sum_i  A_i  sum_t  log p(token t of answer i | question, its tokens before t)

the mean over answers of their cross-entropy, weighted with the advantage: an ordinary Batch. Each answer is used for
one update, so the policy that learns is the policy that wrote (their ratio is 1 and nothing is clipped), and the
gradient is that of REINFORCE with the group's mean as its baseline. There is no KL term, and so no second model in
memory.

Source: Shao et al. 2024, "DeepSeekMath", section 4.1 (the group as baseline); Liu et al. 2025, "Understanding
R1-Zero-Like Training" (Dr. GRPO), section 3: A is not divided by the group's deviation, nor the sum over t by an
answer's length, since both favour some answers whatever their reward.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from minigpt.config.schema import TrainConfig
from minigpt.data.batch import Batch
from minigpt.data.chat.roles import END, encode_turn
from minigpt.data.chat.tasks import question
from minigpt.data.order import batch_of_step
from minigpt.data.tokenizer import Tokenizer
from minigpt.faults import UserFault
from minigpt.machine.choices import Choices
from minigpt.model.gpt import GPT
from minigpt.sampling.filters import SamplingOptions
from minigpt.sampling.generate import NonFiniteLogits, Reader, TextInProgress, generate
from minigpt.sampling.write import gpt_forward
from minigpt.seeds import fold
from minigpt.training.state import TrainingJob

PART = 0.2  # so that a model which is never wholly right learns, too


@dataclass(frozen=True)
class CheckedQuestion:
    """One question of a step."""

    number: int  # counted over the whole run
    tokens: list[int]  # up to <|assistant|>
    answer: str  # the right one


@dataclass
class Questions:
    """The questions of each micro-batch of one rank, used like a text's windows: a pure function of its index.

    Args:
        config: of the run.
        choices: sizes of micro-batches, in which each sequence is an answer.
        tokenizer: one with the control tokens of the roles.
        rank, skipped_batches, start_step: as for `MicroBatches`.
    """

    config: TrainConfig
    choices: Choices
    tokenizer: Tokenizer
    _: KW_ONLY
    rank: int = 0
    skipped_batches: Sequence[Sequence[int]] = ()
    start_step: int = 0

    def __post_init__(self) -> None:
        answers, choices = self.config.objective.answers, self.choices
        if choices.micro_batch % answers:
            wrong = f"a micro-batch of {choices.micro_batch} sequences does not hold whole groups"
            raise UserFault(f"{wrong} of objective.answers={answers}. Add trainer.micro_batch={answers}")

    def __iter__(self) -> Iterator[list[CheckedQuestion]]:
        for index in itertools.count(self.start_step * self.choices.accumulate):
            yield self[index]

    def __getitem__(self, index: int) -> list[CheckedQuestion]:
        """Return the questions of the micro-batch with this number."""
        objective, choices = self.config.objective, self.choices
        step, part = divmod(index, choices.accumulate)
        place = batch_of_step(step, self.skipped_batches) * choices.accumulate + part
        count = choices.micro_batch // objective.answers
        first = (place * choices.devices + self.rank) * count
        questions = []
        for number in range(first, first + count):
            text, answer = question(objective.task, self.config.seed, number)
            tokens = encode_turn(self.tokenizer, [{"role": "user", "content": text}])
            questions.append(CheckedQuestion(number, tokens, answer))
        return questions


def answered(gpt: GPT, questions: Sequence[CheckedQuestion], job: TrainingJob, choices: Choices) -> tuple[Batch, float]:
    """Let the model answer; return the answers weighted with their advantages, and their mean reward.

    Where its logits are not finite the weights are NaN, and so is the loss.
    """
    config, tokenizer = job.config, job.prepared.tokenizer
    answers, is_finite = config.objective.answers, True
    repeated = [asked for asked in questions for _ in range(answers)]
    try:
        texts = write_answers(gpt, questions, tokenizer, answers=answers, seed=config.seed)
    except NonFiniteLogits:  # the guard handles it
        is_finite, texts = False, [[*asked.tokens, tokenizer.special[END]] for asked in repeated]
    pairs = zip(repeated, texts, strict=True)
    rewards = torch.tensor([reward(tokenizer, asked, text[len(asked.tokens) :]) for asked, text in pairs])
    width = config.model.block_size if choices.compile else None  # compiled code is for one shape
    batch = weighted(texts, [len(asked.tokens) for asked in repeated], advantages(rewards, answers), width)
    if not is_finite and batch.weights is not None:
        batch.weights.fill_(torch.nan)
    return batch.to(gpt.token_embedding.weight.device), float(rewards.mean())


def write_answers(
    gpt: GPT, questions: Sequence[CheckedQuestion], tokenizer: Tokenizer, *, answers: int, seed: int
) -> list[list[int]]:
    """Let a model answer each question several times, at temperature 1: the loss is that of the unchanged distribution.

    The random numbers follow from (seed, number of the question, number of the answer, position) alone.

    Returns:
        Tokens of question and answer, the one that ends it included: all answers to question 0, then to question 1, ...
        An answer ends with any control token, or where it is longer than the right one can be.
    """
    control, block_size, texts = frozenset(tokenizer.special.values()), gpt.config.block_size, list[TextInProgress]()
    for asked in questions:
        length = min(len(asked.answer.encode()) + 1, block_size + 1 - len(asked.tokens))
        options = SamplingOptions(max_new_tokens=length, temperature=1.0, seed=fold(seed, asked.number))
        texts += [TextInProgress(list(asked.tokens), options, number) for number in range(answers)]
    was_training = gpt.training
    gpt.eval()
    reader = Reader(gpt_forward(gpt, vocab_size=tokenizer.vocab_size), block_size, gpt.new_cache)
    try:
        for text, token, _ in generate(reader, texts):
            if token in control:
                text.ended = "end of text"
    finally:
        gpt.train(was_training)
    return [text.tokens for text in texts]


def reward(tokenizer: Tokenizer, question: CheckedQuestion, answer: Sequence[int]) -> float:
    """Return 1.0 for tokens that are the right answer and <|end|>.

    Another answer that ends with <|end|> earns PART times the share of the right one with which it begins.
    """
    *text, last = answer
    if last != tokenizer.special[END] or {*text} & {*tokenizer.special.values()}:
        return 0.0
    written = tokenizer.decode(text)
    if written == question.answer:
        return 1.0
    pairs = zip(written, question.answer, strict=False)
    right = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    return PART * right / len(question.answer)


def advantages(rewards: Tensor, answers: int) -> Tensor:
    """Return each reward (P * G,) minus the mean of its group of G = `answers`, (P * G,)."""
    groups = rewards.view(-1, answers)
    return (groups - groups.mean(dim=1, keepdim=True)).flatten()


def weighted(texts: Sequence[Sequence[int]], asked: Sequence[int], weights: Tensor, width: int | None = None) -> Batch:
    """Return texts (n,) as a batch in which each token of an answer has the answer's weight.

    Args:
        texts: tokens of question and answer.
        asked: how many of them are the question's.
        weights: of the answers, (n,).
        width: T of the batch; None: what the longest text needs.
    """
    size = (len(texts), width or max(map(len, texts)) - 1)
    tokens, targets = torch.zeros(2, *size, dtype=torch.int64)
    of_tokens = torch.zeros(size)
    for row, (text, first) in enumerate(zip(texts, asked, strict=True)):
        end = len(text) - 1  # the padding after it has no weight, and attention looks back only
        tokens[row, :end] = torch.tensor(text[:-1])
        targets[row, :end] = torch.tensor(text[1:])
        of_tokens[row, first - 1 : end] = weights[row]
    return Batch(tokens, targets, of_tokens, divisor=float(len(texts)))
