"""Rules of learning from a reward (objective=grpo)."""

from collections.abc import Iterator

from minigpt.config.convert import shown
from minigpt.config.rules.rule import nearest_multiples, rule
from minigpt.config.schema import SHARDED, ObjectiveConfig

LONGEST_EXCHANGE = 64  # bytes of a question of data/chat/tasks.py and its answer, with control tokens and a few more


@rule("objective.name", "objective.task", "objective.answers", "data.name", "init.from", "init.experiment")
def rewards_have_questions(
    name: str, task: str, answers: int, data: str, source: str | None, experiment: str | None
) -> Iterator[str]:
    if name != "grpo":
        for key, value in (("task", task), ("answers", answers)):
            if value != getattr(ObjectiveConfig, key):
                yield f"objective.{key}={shown(value)} is for objective=grpo. Add it, or leave this out."
        return
    if data != "tasks":
        yield f"objective=grpo asks questions whose answers can be checked; data={data} has none. Use data=tasks."
    if source is None and experiment is None:
        remedy = "Say which: init.from=RUN, for example one of experiment=chat_tiny"
        yield f"objective=grpo begins with a model that answers some of the questions. {remedy}."


@rule("objective.name", "objective.answers", "batch_tokens", "model.block_size", "trainer.micro_batch")
def groups_of_answers_are_whole(
    name: str, answers: int, batch_tokens: int, block_size: int, micro_batch: int
) -> Iterator[str]:
    if name != "grpo":
        return
    if batch_tokens % (answers * block_size):
        remedy = f"Use {nearest_multiples('batch_tokens', batch_tokens, answers * block_size)}"
        groups = f"groups of objective.answers={answers} sequences of model.block_size={block_size}"
        yield f"batch_tokens={batch_tokens} does not hold whole {groups}. {remedy}."
    elif micro_batch % answers:
        remedy = f"Use {nearest_multiples('trainer.micro_batch', micro_batch, answers)}"
        yield f"trainer.micro_batch={micro_batch} does not hold whole groups of objective.answers={answers}. {remedy}."
    if block_size < LONGEST_EXCHANGE:
        remedy = f"Use model.block_size={LONGEST_EXCHANGE} or more"
        yield f"model.block_size={block_size} does not hold every question of objective=grpo and its answer. {remedy}."


@rule("objective.name", "trainer.strategy", "model.dropout", "trainer.patience", "guard.spike_zscore")
def rewards_are_learned_as_written(
    name: str, strategy: str, dropout: float, patience: int, spike_zscore: float
) -> Iterator[str]:
    if name != "grpo":
        return
    if strategy in SHARDED:
        yield f"objective=grpo needs the model whole on each device, got trainer.strategy={strategy}. Use trainer=ddp."
    if dropout:
        yield f"objective=grpo learns what a model wrote, which model.dropout={dropout:g} changes. Use model.dropout=0."
    for key, value in (("trainer.patience", patience), ("guard.spike_zscore", spike_zscore)):
        if value:
            yield f"{key}={value:g} judges losses, which say nothing about a reward (objective=grpo). Leave it out."


@rule("objective.name", "sweep.metric")
def trials_are_judged_by_what_they_learn(name: str, metric: str) -> Iterator[str]:
    if name == "grpo":
        yield f"A sweep compares trials by their {metric}, which objective=grpo does not learn. Train one by one."
