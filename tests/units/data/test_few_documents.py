"""Few documents are each divided at their end."""

from tests.promises.test_text_in import STORIES, documents, made, rows, write


def test_few_documents_are_each_divided_at_their_end(folder):
    alphabets = [[chr(first + letter) for letter in range(16)] for first in range(0x3B0, 0x3B0 + 16 * 16, 16)]
    logs = ["".join(alphabet) * (number + 1) for number, alphabet in enumerate(alphabets)]
    for number, log in enumerate(logs):
        write(folder / "logs" / f"{number:02}.log", log)
    borders = [int(len(log) * 0.9) for log in logs]
    parts = [log[:border] for log, border in zip(logs, borders, strict=True)]
    assert documents(made("logs")[0]) == (parts, [log[len(part) :] for log, part in zip(logs, parts, strict=True)])
    learned, parts = made("logs", "bpe")[0].tokenizer, "".join(parts).encode()
    assert all(learned.token_bytes(token) in parts for token in range(256, learned.vocab_size - 1))


def test_fifty_documents_are_split_whole_and_fewer_are_not(folder):
    for name, count in (("many", 50), ("few", 49)):
        write(folder / f"{name}.jsonl", rows(STORIES[:count]))
    train, val = documents(made("many.jsonl")[0])
    assert 0 < len(val) < 15
    assert sorted(train + val) == sorted(STORIES[:50])
    train, val = documents(made("few.jsonl")[0])
    assert [first + second for first, second in zip(train, val, strict=True)] == STORIES[:49]
