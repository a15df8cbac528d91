"""lm-eval runs our models on local tasks, offline, and gets the figures that we get."""

import json
import math

import pytest
import torch

import minigpt
from minigpt.evaluation.questions import encode_pair, judge, read_questions, score_pairs

lm_eval = pytest.importorskip("lm_eval")
pytest.importorskip("datasets")

# Each is written as JSON, which is YAML.
SHARED = {"dataset_path": "json", "test_split": "train"}
CHOICE = {"output_type": "multiple_choice", "doc_to_text": "{{context}}", "doc_to_choice": "choices"}
CHOICE |= {"doc_to_target": "answer", "target_delimiter": ""}
CHOICE |= {"metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}
TEXT = {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{context}}"}
TEXT |= {"metric_list": [{"metric": "bits_per_byte"}]}
WRITE = {"output_type": "generate_until", "doc_to_text": "{{context}}", "doc_to_target": "x"}
WRITE |= {"generation_kwargs": {"until": ["o"], "max_gen_toks": 5}, "metric_list": [{"metric": "exact_match"}]}
TASKS = {"our_choice": CHOICE, "our_text": TEXT, "our_writing": WRITE}


@pytest.fixture
def place(tmp_path, run, monkeypatch):
    """A folder with a run, questions and tasks."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    run("trainer.max_steps=30", "optimizer.lr=1e-2")
    words = ["wood", "how", "much", "would", "if"]
    choices = [[" chuck", " wo", f" z{n}"] for n in range(24)]
    records = [{"context": f"a {words[n % 5]}", "choices": choices[n], "answer": n % 3} for n in range(24)]
    (tmp_path / "questions.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "tasks").mkdir()
    for name, task in TASKS.items():
        file = {"dataset_kwargs": {"data_files": str(tmp_path / "questions.jsonl")}}
        (tmp_path / "tasks" / f"{name}.yaml").write_text(json.dumps({"task": name, **SHARED, **file, **task}))
    return tmp_path


def test_local_tasks_give_our_figures(place):
    from lm_eval.tasks import TaskManager

    from minigpt.evaluation.lm_eval import MiniGPT

    manager = TaskManager(include_path=str(place / "tasks"), include_defaults=False)
    model = MiniGPT(str(place / "run"), device="cpu")
    done = lm_eval.simple_evaluate(
        model=model, tasks=[*TASKS], task_manager=manager, bootstrap_iters=0, log_samples=True
    )
    gpt = minigpt.load(place / "run")

    questions = read_questions(place / "questions.jsonl")
    pairs = [encode_pair(gpt.tokenizer, each.context, choice) for each in questions for choice in each.choices]
    figures = judge(questions, score_pairs(gpt.model, pairs)).figures()
    assert done["results"]["our_choice"]["acc,none"] == pytest.approx(figures["accuracy"])
    assert done["results"]["our_choice"]["acc_norm,none"] == pytest.approx(figures["accuracy_normalised"])

    nats = size = 0.0
    with torch.inference_mode():
        for question in questions:  # shorter than a window: each token from all before it
            tokens = [gpt.tokenizer.eot, *gpt.tokenizer.encode(question.context)]
            for place_, token in enumerate(tokens[1:], 1):
                nats -= gpt.model(torch.tensor([tokens[:place_]]))[0, -1].double().log_softmax(-1)[token].item()
            size += len(question.context)
    wanted = nats / math.log(2) / size
    assert done["results"]["our_text"]["bits_per_byte,none"] == pytest.approx(wanted, rel=1e-4)

    for sample in done["samples"]["our_writing"]:
        wanted = gpt.generate(sample["doc"]["context"], max_new_tokens=5, temperature=0, stop=["o"])
        assert sample["resps"][0][0] == wanted


def test_it_is_known_by_its_name(place):
    import minigpt.evaluation.lm_eval

    model = lm_eval.api.registry.get_model("minigpt")
    assert model is minigpt.evaluation.lm_eval.MiniGPT
    made = model.create_from_arg_string(f"checkpoint={place / 'run'}", {"batch_size": 1, "device": "cuda:0"})
    assert made.loglikelihood([]) == []


def test_a_continuation_longer_than_the_context_is_predicted_in_windows(place):
    from lm_eval.api.instance import Instance

    from minigpt.evaluation.lm_eval import MiniGPT

    model = MiniGPT(str(place / "run"), device="cpu")
    long = " wood would chuck" * 3
    asked = [Instance("loglikelihood", {}, ("how much", text), 0) for text in (long, " a")]
    (nats, greedy), (short, _) = model.loglikelihood(asked)
    size, (context, following) = model.block_size, encode_pair(model.tokenizer, "how much", long)
    assert len(following) > 2 * size
    tokens, wanted = context + following, 0.0
    for start in range(len(context), len(tokens), size):
        (piece,) = score_pairs(model.model, [(tokens[:start], tokens[start : start + size])])
        wanted += piece[0]
    assert nats == pytest.approx(wanted)
    assert not greedy
    assert short == score_pairs(model.model, [encode_pair(model.tokenizer, "how much", " a")])[0][0]
