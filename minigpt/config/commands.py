"""The commands, and the settings of commands that are not in schema.py."""

from dataclasses import dataclass, field
from typing import Literal

from minigpt.config import schema
from minigpt.config.setting import setting


@dataclass
class CompareConfig:
    """Say which run predicts better, and how certain that is.

    Each run's best checkpoint is scored on the whole validation split. The interval of the
    difference covers held-out documents, seeds, or both. Runs that differ only in the seed are
    one side. `RUN ... vs RUN ...` assigns the sides explicitly.

    Examples:
      minigpt compare runs/A runs/B
      minigpt compare runs/A1 runs/A2 vs runs/B1 runs/B2 which=latest
    """

    runs: list[str] = setting([], "runs or checkpoints, and `vs`", "watch", literal=True, words=True, required=True)
    which: schema.Which = setting("best", "which checkpoint of a run", "watch")
    device: schema.Device = setting("auto", "where to compute", "machine")
    data_dir: str | None = setting(None, "prepared tokens, if elsewhere", "watch", key="data.dir", folder=True)


@dataclass
class ExportConfig(schema.ModelRef):
    """Write a model for other programs, read it back, and print the proof that it is the same model.

    Examples:
      minigpt export checkpoint=runs/NAME format=hf dir=my-model
      minigpt export checkpoint=runs/NAME format=gguf type=q8_0 dir=my-gguf
    """

    format: Literal["hf", "gguf"] = setting("hf", "hf: Hugging Face folder; gguf: llama.cpp and Ollama", "watch")
    dir: str | None = setting(None, "a new folder", "watch", aka="out output outdir", folder=True, required=True)
    type: Literal["f32", "f16", "q8_0"] = setting("f32", "gguf: type of the matrices", "watch")


@dataclass
class EvaluateConfig(schema.ModelRef):
    """Score texts and questions with a trained GPT.

    Of a text: nats per token, bits per byte, perplexity per token and per word, accuracy, over the
    whole file and by the rule of val/loss. Of questions: accuracy, plain and length-normalised.

    Examples:
      minigpt evaluate checkpoint=runs/NAME file=test.txt
      minigpt evaluate runs/NAME file=a.txt file=b.txt json=out.json per_token=t.jsonl
      minigpt evaluate checkpoint=runs/A versus=runs/B questions=questions.jsonl
    """

    versus: str | None = setting(None, "another run or model, to compare with", "watch", model=True)
    file: list[str] = setting([], "a text; repeatable", "watch", aka="source text dataset", file=True)
    questions: list[str] = setting([], "JSON lines; repeatable", "watch", file=True)
    json: str | None = setting(None, "a file for the figures; a list where several were given", "watch", literal=True)
    per_token: str | None = setting(None, "a file for each token's loss, as JSON lines", "watch", literal=True)
    stride: int | None = setting(None, "tokens from window to window; default: the context length", "watch", low=1)
    device: schema.Device = setting("auto", "where to compute", "machine")
    encoding: str = setting("utf-8", "encoding of the files", "watch", key="data.encoding")
    errors: schema.BadBytes = setting("strict", "for bytes not valid in it", "watch", key="data.errors")
    separator: str | None = setting(
        None, "between documents of a text; default: the run's", "watch", key="data.separator", literal=True
    )
    text_key: str | None = setting(
        None, "JSON, CSV, Parquet: key or column of the text; default: the run's", "watch", key="data.key"
    )


@dataclass
class RunsConfig:
    """List the runs of a folder, or the checkpoints of a run.

    Examples:
      minigpt runs
      minigpt runs runs/NAME
    """

    folders: list[str] = setting(["runs"], "folders of runs, or runs", "watch", literal=True, words=True)


@dataclass
class ReportConfig:
    """Draw a run's loss.png and report.html again.

    Examples:
      minigpt report
      minigpt report runs/NAME
    """

    run_dir: str | None = setting(None, "default: the newest of runs/", "watch", key="run.dir", folder=True, words=True)


@dataclass
class VerifyResumeConfig(schema.TrainConfig):
    """Prove on this machine that a killed run ends with the same bytes.

    Takes the settings of `train`, too.

    It trains twice, once in one go and once killed with SIGKILL at random moments, and compares
    every byte. Exit code 0: the same bytes, 1: other bytes.

    Example:
      minigpt verify-resume experiment=demo trainer.max_steps=60 kills=5
    """

    kills: int = setting(5, "how often the run is killed", "watch", low=1, high=10_000)


@dataclass
class JobConfig:
    """The job that SLURM is asked for."""

    file: str = setting("train.sbatch", "the script to write", "watch", literal=True)
    name: str | None = setting(None, "name of the job; default: the experiment's", "watch")
    time: str = setting("24:00:00", "time limit, as sbatch takes it", "watch", literal=True)
    partition: str | None = setting(None, "default: the cluster's", "watch")
    account: str | None = setting(None, "default: yours", "watch")
    cpus: int = setting(0, "cores of a process; 0 = 8 beside a GPU, else its threads or 2", "machine", low=0, high=4096)
    setup: str | None = setting(None, "shell commands before the training: module load cuda", "watch", literal=True)


@dataclass
class SlurmConfig(schema.TrainConfig):
    """Write the script that submits a training to SLURM. Takes the settings of `train`, too.

    Before its time limit, or when it is preempted, the job saves and is queued again; `scancel` ends
    it for good.

    Examples:
      minigpt slurm experiment=gpt2_124m data.source=my_texts/ trainer=ddp trainer.devices=8
      minigpt slurm model=gpt2 tokenizer=gpt2 trainer=ddp trainer.nodes=2 trainer.devices=8
      minigpt slurm experiment=demo trainer.device=cpu job.time=00:30:00 job.file=demo.sbatch
    """

    job: JobConfig = field(default_factory=JobConfig)


@dataclass
class PlanConfig(schema.TrainConfig):
    """Estimate the memory of a training on each device: whether it fits. Takes the settings of `train`.

    Nothing is trained, and no text is needed. With budget=, forecast the result of each of these times
    on a text.

    Examples:
      minigpt plan experiment=gpt2_124m card=H100
      minigpt plan experiment=gpt2_124m memory=24
      minigpt plan model=gpt2-xl tokenizer=gpt2 memory=24 trainer=ddp trainer.devices=8
      minigpt plan data.source=my_texts/ budget=1min,10min,1h,8h
    """

    memory: float | None = setting(None, "GB of a device's memory; default: this machine's", "watch", above=0)
    card: str | None = setting(None, "a GPU, as nvidia-smi names it: H100, RTX 4090, ...", "watch", literal=True)
    vocab_size: int = setting(0, "tokens; 0 = as the tokenizer says, char: 128", "watch", low=0, high=2**31 - 1)


@dataclass
class ServeConfig(schema.Writer):
    """Serve models over HTTP with OpenAI's protocol, and a page to try them.

    Examples:
      minigpt serve checkpoint=runs/NAME
      minigpt serve checkpoint=runs/A checkpoint=runs/B port=9000
      minigpt serve checkpoint=runs/BASE adapter=runs/TUNED1 adapter=runs/TUNED2
      minigpt serve checkpoint=runs/NAME host=0.0.0.0 token_file=token.txt
    """

    checkpoint: list[str] = setting([], "run or checkpoint; repeatable", "watch", model=True, required=True, words=True)
    adapter: list[str] = setting([], "adapter of one of them; repeatable", "watch", model=True)
    which: schema.Which = setting("best", "which checkpoint of a run", "watch")
    host: str = setting("127.0.0.1", "address to listen at; another than this machine's own needs a token", "watch")
    port: int = setting(8000, "0 = any free port", "watch", low=0, high=65535)
    token_file: str | None = setting(None, "a file with the token; or MINIGPT_TOKEN", "watch", file=True)
    hosts: list[str] = setting([], "name of this server behind a proxy; repeatable", "watch", literal=True)
    origins: list[str] = setting([], "https://... whose pages may use it; repeatable", "watch", literal=True)
    rows: int = setting(16, "texts written at a time, of each model", "machine", low=1, high=32)
    queue: int = setting(64, "texts that may wait, of each model", "machine", low=0, high=10_000)
    max_tokens: int = setting(4096, "largest number of tokens in a text", "machine", low=1, high=10**6)
    seconds: float = setting(300.0, "time limit of an answer", "machine", above=0, high=10**6)
    log: Literal["none", "requests", "prompts"] = setting("requests", "what is printed about each request", "watch")


@dataclass
class ChatConfig(schema.Writer, schema.ModelRef):
    """Talk with a trained GPT at the terminal: type a message, /help lists the commands.

    Examples:
      minigpt chat checkpoint=runs/NAME
      minigpt chat checkpoint=runs/NAME temperature=0.7 system="Be brief."
      minigpt chat checkpoint=runs/BASE adapter=runs/TUNED
    """

    adapter: str | None = setting(None, "run or peft folder with an adapter for the model", "watch", model=True)
    system: str | None = setting(None, "system message, before all others", "watch", literal=True)
    max_new_tokens: int = setting(256, "most tokens of an answer", "watch", low=1)
    temperature: float = setting(0.0, "0 = greedy", "watch", aka="temp", low=0)
    top_k: int = setting(0, "keep the k most likely tokens; 0 = off", "watch", low=0)
    top_p: float = setting(1.0, "keep the smallest set this likely (nucleus); 1 = off", "watch", above=0, high=1)
    seed: int = setting(1337, "of the first answer; each later answer has the next", "watch", low=0, high=2**32 - 1)


@dataclass
class LookConfig(schema.ModelRef):
    """Write a page that shows the tokens of a text and the attention to them, as one file.

    Examples:
      minigpt look checkpoint=runs/NAME text='To be, or not to be'
      minigpt look checkpoint=runs/NAME text='To be, or not to be' png=attention.png
    """

    text: str = setting("", "what the model reads", "watch", aka="prompt", literal=True, required=True)
    out: str = setting("look.html", "the file", "watch", literal=True)
    png: str | None = setting(None, "also a picture of each layer's heads", "watch", literal=True)


@dataclass
class BenchmarkConfig(schema.TrainConfig):
    """Measure minigpt's speed on this machine. Takes the settings of `train`, too.

    The text is made on the spot (data=, tokenizer= and experiment= are refused); steps= sets the
    length. benchmarks/peers.py compares with others.

    Examples:
      minigpt benchmark preset=c0
      minigpt benchmark preset=124m what=training trainer.compile=on
    """

    preset: Literal["c0", "c1", "124m", "350m", "gpu"] = setting(
        "c0", "c0 and c1: nanoGPT's for CPUs, else GPT-2; gpu: 124m on one", "weights"
    )
    what: Literal["training", "sampling", "training,sampling"] = setting("training,sampling", "parts", "watch")
    rounds: int = setting(3, "measurements of each part", "watch", low=1, high=10**6)
    steps: int | None = setting(None, "timed in a measurement; default: the preset's", "watch", low=1, high=10**6)
    new_tokens: int | None = setting(None, "sampling; default: the preset's", "watch", low=2, high=10**6)


CLASSES: dict[str, type] = {  # of each command
    "train": schema.TrainConfig,
    "prepare": schema.PrepareConfig,
    "sample": schema.SampleConfig,
    "sweep": schema.SweepConfig,
    "compare": CompareConfig,
    "evaluate": EvaluateConfig,
    "report": ReportConfig,
    "export": ExportConfig,
    "runs": RunsConfig,
    "verify-resume": VerifyResumeConfig,
    "plan": PlanConfig,
    "slurm": SlurmConfig,
    "benchmark": BenchmarkConfig,
    "chat": ChatConfig,
    "serve": ServeConfig,
    "look": LookConfig,
}
