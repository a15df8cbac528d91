"""GGUF files: read back, and run by llama.cpp itself. `make test-extras` installs both; else these are skipped."""

import json
import urllib.request

import pytest
import torch

import minigpt
from minigpt.config.compose import compose
from minigpt.export import TEXT, export
from minigpt.faults import UserFault
from tests.promises.test_models_in_and_out import MODERN, SHAPES
from tests.promises.test_tokenizers import MARKS

pytest.importorskip("gguf", reason="gguf is not installed: make test-extras")
UNICODE = [*MODERN, "model.qk_norm=none", "tokenizer=char"]
WORDS = [*MODERN, "model.qk_norm=none", "tokenizer=bpe", "tokenizer.vocab_size=500"]
LEARN = ["model.block_size=32", "model.n_embd=32", "optimizer.lr=0.02"]
LEARN += ["trainer.max_steps=60", "validate.every_steps=0"]


def exported(run, folder, *settings: str, kind: str = "f32") -> list[str]:
    run(*LEARN, *settings)
    lines: list[str] = []
    export(compose("export", [f"checkpoint={run.path}", "format=gguf", f"type={kind}", f"dir={folder}"]), lines.append)
    return "\n".join(lines).splitlines()


def llama_cpp(folder):
    """llama.cpp with an exported model, computing in fp32."""
    xllamacpp = pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: make test-extras")
    options = xllamacpp.CommonParams()
    options.model.path = str(folder / "model-f32.gguf")
    options.n_ctx, options.n_parallel, options.warmup, options.verbosity = 256, 1, False, -1
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = 1
    options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    options.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(options)


def ask(server, path: str, **content) -> dict:
    request = urllib.request.Request(f"{server.listening_address}/{path}", json.dumps(content).encode())
    with urllib.request.urlopen(request, timeout=30) as reply:
        return json.load(reply)


@pytest.mark.parametrize("shape", [*SHAPES, "unicode", "marks"])
def test_llama_cpp_writes_the_same_text(run, tmp_path, shape):
    if shape == "unicode":
        (run.folder / "text.txt").write_text("naïve déjà vu – мир 🙂 ß, und so weiter " * 40)
    if shape == "marks":
        (run.folder / "text.txt").write_text(MARKS * 40)
    lines = exported(run, tmp_path / "out", *(SHAPES | {"unicode": UNICODE, "marks": WORDS})[shape])
    assert "largest difference 0.0e+00" in lines[1]
    server = llama_cpp(tmp_path / "out")
    gpt = minigpt.load(run.path)
    end = gpt.model.vocab_size - 1  # the end-of-text token, or the last character, which stands for it
    prompt = gpt.tokenizer.encode((run.folder / "text.txt").read_text()[:9])
    request = {"prompt": prompt, "n_predict": 20, "temperature": 0, "ignore_eos": True, "n_probs": 1}
    answer = server.handle_completions(request)
    answer = json.loads(answer) if isinstance(answer, str | bytes) else answer
    found = answer["choices"][0]["logprobs"]["content"]
    tokens = list(prompt)
    for each in found:
        with torch.inference_mode():
            chances = gpt.model(torch.tensor([tokens]))[0, -1].double().log_softmax(0)
        allowed = torch.arange(len(chances)) != end  # ignore_eos
        tokens.append(int(chances.where(allowed, -torch.inf).argmax()))
        assert each["id"] == tokens[-1]
        assert abs(each["logprob"] - float(chances[tokens[-1]])) < (1e-3 if shape.startswith("gpt2") else 5e-5)
    assert len(found) == 20
    tokens = torch.randint(gpt.model.vocab_size, (200, 9), generator=torch.Generator().manual_seed(1)).tolist()
    texts = [] if gpt.tokenizer.name == "char" else [TEXT, MARKS]
    texts += [gpt.tokenizer.decode(row) for row in tokens]
    plain = {"add_special": False, "parse_special": False}
    theirs = [ask(server, "tokenize", content=text, **plain)["tokens"] for text in texts]
    assert theirs == [gpt.tokenizer.encode(text) for text in texts]


@pytest.mark.parametrize(("kind", "most"), [("f16", 0.05), ("q8_0", 0.5)])
def test_smaller_files_say_what_they_lose(run, tmp_path, kind, most):
    lines = exported(run, tmp_path / "out", *SHAPES["qwen3"], kind=kind)
    assert 0 < float(lines[1].split("difference ")[1].split()[0]) < most
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"Modelfile", "README.md", f"model-{kind}.gguf"}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (["model.activation=gelu"], r"model\.activation=gelu"),
        ([*MODERN, "model.qk_norm=rmsnorm", "model.bias=qkv"], r"qwen3 has no biases"),
        ([*MODERN, "model.qk_norm=rmsnorm", "model.rope_scaling=llama3"], r"model\.rope_scaling=llama3"),
        ([*UNICODE], r"U\+2581"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused_before_anything_is_written(run, tmp_path, settings, reason):
    if settings == UNICODE:
        (run.folder / "text.txt").write_text("how much wood\u2581would a woodchuck chuck " * 40)
    with pytest.raises(UserFault, match=reason):
        exported(run, tmp_path / "out", *settings)
    assert not (tmp_path / "out").exists()


def test_llama_cpp_reads_messages_by_our_template(run, tmp_path):
    rows = [json.dumps({"prompt": f"say {n}", "completion": f"it is {n}"}) for n in range(90)]
    (run.folder / "talks.jsonl").write_text("\n".join(rows))
    exported(run, tmp_path / "out", *SHAPES["qwen3"], "data=chat", f"data.source={run.folder / 'talks.jsonl'}")
    server = llama_cpp(tmp_path / "out")
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    prompt = ask(server, "apply-template", messages=[*messages, {"role": "user", "content": "say 3"}])["prompt"]
    assert prompt == "<|user|>hello<|assistant|>hi<|end|><|user|>say 3<|assistant|>"
    del server
