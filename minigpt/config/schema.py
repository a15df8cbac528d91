"""The settings of training, data, samples and sweeps: the only definition of the configuration.

Standard library only, so a config can be read and checked without torch. YAML files under configs/ hold named
differences from these defaults; the command line comes last. `--help` prints the meanings. Literal types hold the
allowed words. A new setting's default must keep the old behaviour.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from minigpt.config.setting import setting

Device = Literal["auto", "cuda", "mps", "cpu"]
BadBytes = Literal["strict", "replace", "cp1252"]
Toggle = Literal["auto", "on", "off"]
SHARDED = ("fsdp", "hsdp")  # strategies under which a device holds a part of the weights
CONVERSATIONS = ("chat", "tasks")  # names of data of which only the answers are learned
Which = Literal["best", "latest"]

# Retired settings and commands -> the sentence with which they are refused until version 1.0: what to do instead.
RETIRED = {
    "data.workers": "batches are made in the training process, hundreds of times as fast as it trains. Leave it out",
    "data.shards": "copy the prepared folder to this machine and give data.mix=FOLDER:1",
    "data.cache_gb": "it belonged to data.shards. Leave it out",
    "data.check": "minigpt prepare prints what it reads. Leave it out",
    "prepare.part": "one command prepares on all cores (prepare.workers), or on a cluster with prepare.engine=ray",
    "prepare.slurm": "one command prepares on all cores (prepare.workers), or on a cluster with prepare.engine=ray",
    "beside": "minigpt compare RUN RUN compares runs; open their report.html side by side",
    "nanogpt": "python benchmarks/peers.py nanogpt=DIR runs minigpt beside nanoGPT",
    "huggingface": "python benchmarks/peers.py huggingface=true runs minigpt beside Hugging Face's GPT-2",
    "curve_steps": "python benchmarks/peers.py compares the losses with nanoGPT's",
    "sweep.storage": "the journal in sweep.dir keeps a sweep. Leave it out",
    "draw-attention": "minigpt look checkpoint=RUN text=TEXT shows what each head attends to",
}


@dataclass
class ModelConfig:
    """The transformer. By default it has GPT-2's architecture."""

    n_layer: int = setting(4, "transformer blocks", "weights", low=1, high=10_000)
    n_head: int = setting(4, "attention heads per block", "weights", low=1, high=10_000)
    n_kv_head: int = setting(0, "heads of keys and values; 0 = n_head", "weights", low=0, high=10_000)
    head_dim: int = setting(0, "width of a head; 0 = n_embd / n_head", "weights", low=0, high=100_000)
    n_embd: int = setting(128, "model width C", "weights", low=1, high=1_000_000)
    n_hidden: int = setting(0, "width in the MLP; 0 = 4 n_embd, swiglu: 8/3 n_embd", "weights", low=0, high=10_000_000)
    block_size: int = setting(128, "context length T in tokens", "weights", low=1, high=2**24)
    dropout: float = setting(0.0, "on embeddings, attention weights and block outputs", "schedule", low=0, below=1)
    bias: Literal[True, False, "none", "qkv", "attention", "all"] = setting(True, "GPT-2: true; Qwen2: qkv", "weights")
    norm: Literal["layernorm", "rmsnorm"] = setting("layernorm", "rmsnorm: no mean, no bias", "weights")
    norm_eps: float = setting(1e-5, "of every norm", "weights", above=0, below=1)
    activation: Literal["gelu_tanh", "gelu", "relu_squared", "swiglu"] = setting("gelu_tanh", "gelu: exact", "weights")
    attention: Literal["softmax", "rotary", "linear"] = setting("softmax", "rotary: softmax, RoPE positions", "weights")
    qk_norm: Literal["auto", "none", "layernorm", "rmsnorm"] = setting("auto", "auto: layernorm if rotary", "weights")
    rope_theta: float = setting(10_000.0, "rotary: larger turns slower", "weights", low=1, high=1e12)
    rope_scaling: Literal["none", "llama3"] = setting("none", "rotary: positions stretched as in Llama 3", "weights")
    rope_factor: float = setting(8.0, "llama3: slow pairs turn slower by this factor", "weights", low=1)
    rope_low_freq_factor: float = setting(1.0, "llama3: pairs of fewer turns slow fully", "weights", above=0)
    rope_high_freq_factor: float = setting(4.0, "llama3: pairs of more turns stay", "weights", above=0)
    rope_original_context: int = setting(8192, "llama3: the context of these turns", "weights", low=1)
    tied: bool = setting(True, "the token embedding is the output layer, too", "weights")
    init: Literal["normal", "induction"] = setting("normal", "induction: begins with two copying heads", "weights")
    checkpoint_activations: bool = setting(False, "recompute in the backward pass: less memory, ~1/3 slower", "machine")


@dataclass
class TokenizerConfig:
    """Text to tokens."""

    name: str = setting("bpe", "byte | char | bpe (trained on the text) | gpt2 (GPT-2's own) | file", "weights")
    vocab_size: int = setting(2048, "bpe: number of tokens, with end-of-text", "weights", low=1, high=2**31 - 1)
    file: str | None = setting(None, "file: a tokenizer.json (Llama 3's, Qwen's ...)", "content", file=True)
    eot: str | None = setting(None, "file: its end-of-text token; null: the one it names", "weights")
    dropout: float = setting(0.0, "bpe, gpt2: share of merges left out in training", "schedule", low=0, below=1)


@dataclass
class DataConfig:
    """Where the text comes from and where its tokens are kept."""

    name: Literal["stdlib", "shakespeare_char", "text", "chat", "tasks"] = setting(
        "stdlib", "stdlib: Python's own source; tasks: generated conversations", "weights"
    )
    source: str | None = setting(None, "file, folder, glob, URL; or several, by commas", "content", literal=True)
    val_source: str | None = setting(None, "validation text; else part of source", "content", literal=True)
    dir: str = setting("data", "folder for the prepared tokens", "watch", folder=True)
    val_fraction: float = setting(0.1, "part of the text that is held out for validation", "weights", above=0, below=1)
    encoding: str = setting("utf-8", "encoding of the source files", "weights")
    errors: BadBytes = setting("strict", "for bytes that are no text in `encoding`", "weights")
    key: str = setting("text", "JSON, CSV, Parquet: key or column of the text", "weights")
    separator: str | None = setting(None, "between documents of a plain text: <|endoftext|>", "weights", literal=True)
    include: str | None = setting(None, "folder: patterns of files to read: *.md,*.txt", "weights")
    exclude: str | None = setting(None, "folder: patterns of files to leave out", "weights")
    mix: dict[str, float] = setting({}, "several sources in place of one: texts/:0.7,more.jsonl:0.3", "weights")
    mask_documents: bool = setting(False, "no document of a window sees another", "weights")


@dataclass
class OptimizerConfig:
    """The run's one optimizer."""

    name: Literal["adamw", "muon"] = setting("adamw", "muon: the blocks' matrices by Muon, others by AdamW", "weights")
    lr: float = setting(1e-3, "peak learning rate", "schedule", aka="learning_rate", above=0)
    matrix_lr: float = setting(0.02, "muon only: peak learning rate of the blocks' matrices", "schedule", above=0)
    split_qkv: bool = setting(False, "muon only: queries, keys and values are three matrices, not one", "weights")
    momentum: float = setting(0.95, "muon only: decay of the gradient's running mean", "schedule", low=0, below=1)
    beta1: float = setting(0.9, "decay of the gradient's running mean", "schedule", low=0, below=1)
    beta2: float = setting(0.99, "decay of its running square", "schedule", low=0, below=1)
    eps: float = setting(1e-8, "added to the denominator", "schedule", above=0)
    weight_decay: float = setting(0.1, "decoupled, on matrices only (not on biases, norms)", "schedule", low=0)
    grad_clip: float = setting(1.0, "global gradient norm limit; 0 = off", "schedule", low=0)
    average_fraction: float = setting(0.0, "averages the weights over this last part", "weights", low=0, high=1)


@dataclass
class ScheduleConfig:
    """The learning rate over the run: linear warm-up, then this shape."""

    name: Literal["cosine", "linear", "wsd", "constant"] = setting("cosine", "wsd: constant, then linear", "schedule")
    warmup_steps: int = setting(100, "optimizer steps of linear warm-up", "schedule", aka="warmup_iters", low=0)
    final_lr_fraction: float = setting(0.1, "of the peak, at the run's end", "schedule", aka="min_lr", low=0, high=1)
    decay_fraction: float = setting(
        0.3, "wsd: last part after the warm-up: the rate falls", "schedule", above=0, high=1
    )


@dataclass
class TrainerConfig:
    """How long to train, and on what. `auto` is decided by config and hardware, then kept by the run."""

    max_steps: int | None = setting(2000, "optimizer steps", "schedule", aka="max_iters steps", low=1)
    max_tokens: int | None = setting(None, "tokens to train on; overrides max_steps", "schedule", low=1, high=10**18)
    epochs: float | None = setting(
        None, "passes over the training text; overrides max_steps", "schedule", aka="max_epochs", above=0, high=10**6
    )
    max_minutes: float | None = setting(None, "stop after this much training time as well", "schedule", above=0)
    patience: int = setting(0, "stop after this many validations without a better val/loss; 0 = off", "schedule", low=0)
    device: Device = setting("auto", "where to compute", "machine")
    devices: int = setting(1, "processes on each host; more than one needs a strategy", "machine", low=1, high=65_536)
    nodes: int = setting(1, "hosts; more than one needs torchrun or srun", "machine", low=1, high=65_536)
    strategy: Literal["auto", "ddp", "fsdp", "hsdp"] = setting(
        "auto", "ddp: each device has all weights; fsdp: a part; hsdp: a part, in groups of `shards`", "machine"
    )
    shards: int = setting(0, "hsdp: devices that share one copy of the weights; 0 = those of a host", "machine", low=0)
    reshard: Toggle = setting("auto", "fsdp: free gathered weights; auto: with one micro-batch a step", "machine")
    gather: Literal["full", "bf16"] = setting("full", "fsdp: type of gathered weights", "weights")
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp64"] = setting(
        "auto", "fp16: scaled losses, for GPUs without bf16; fp64 is for tests", "weights", aka="dtype"
    )
    compile: Toggle = setting("auto", "torch.compile", "machine")
    attention_kernel: Literal["auto", "explicit", "fused"] = setting("auto", "two ways to the same numbers", "machine")
    threads: int = setting(0, "CPU threads; 0 = auto", "machine", low=0, high=4096)
    micro_batch: int = setting(0, "sequences per forward pass and device; 0 = auto", "machine", low=0, high=2**24)
    loss_chunk: Literal["auto", "off"] | int = setting("auto", "rows of logits at a time", "machine", low=1)
    deterministic: bool = setting(False, "CUDA: same bits on every run, slower. A CPU run always is", "machine")

    @property
    def sharded(self) -> bool:
        """Whether a process holds a part of the weights only."""
        return self.strategy in SHARDED


@dataclass
class ValidateConfig:
    """Validation covers the whole validation split each time."""

    every_steps: int = setting(250, "steps between validations; 0 = at the end", "schedule", aka="eval_interval", low=0)
    batch: int = setting(0, "sequences per forward pass; 0 = auto", "machine", low=0, high=2**24)


@dataclass
class SamplesConfig:
    """Text written by the model while it trains."""

    every_steps: int = setting(500, "optimizer steps between live samples; 0 = none", "watch", low=0)
    max_new_tokens: int = setting(64, "length of each", "watch", low=1)
    temperature: float = setting(0.8, "0 = greedy", "watch", low=0)
    top_k: int = setting(50, "0 = off", "watch", low=0)
    repetition_penalty: float = setting(1.0, "> 1: tokens used before get rarer; 1 = off", "watch", above=0)
    prompt: str = setting("", "empty: start from end-of-text (or a newline)", "watch", literal=True)


@dataclass
class GuardConfig:
    """What happens to a step whose loss or gradient is not finite: it never reaches the weights."""

    max_skips: int = setting(10, "bad steps in a row before the run returns to a checkpoint", "schedule", low=0)
    max_rollbacks: int = setting(3, "times the run may go back before it stops with exit code 5", "schedule", low=0)
    spike_zscore: float = setting(0.0, "skip losses this many deviations above the mean; 0 = off", "schedule", low=0)
    spike_window: int = setting(128, "good steps over which that mean is taken", "schedule", low=16, high=10_000)


@dataclass
class CheckpointConfig:
    """Durable checkpoints in run.dir/checkpoints/."""

    every_steps: int = setting(250, "steps between saves; one is made at the end", "watch", aka="save_interval", low=1)
    keep_last: int = setting(2, "newest ones kept, at least 2", "watch", low=2)
    keep_every_steps: int = setting(0, "also keep every n-th step for good; 0 = off", "watch", low=0)


@dataclass
class LoggerConfig:
    """metrics.jsonl is always written; wandb or TensorBoard can be added."""

    name: Literal["files", "wandb", "tensorboard"] = setting("files", "files: none is added", "watch", aka="wandb_log")
    every_steps: int = setting(10, "steps between rows and progress lines", "watch", aka="log_interval", low=1)
    project: str = setting("minigpt", "wandb only", "watch")
    mode: Literal["offline", "online"] = setting("offline", "wandb only", "watch")
    group: str | None = setting(None, "wandb only", "watch")


@dataclass
class RunConfig:
    """The run directory."""

    dir: str | None = setting(None, "runs/EXPERIMENT-TEXT-SHAPE-HASH", "watch", aka="out_dir output_dir", folder=True)


@dataclass
class InitConfig:
    """Starting weights."""

    source: str | None = setting(None, "run or checkpoint to take weights from", "weights", key="from", model=True)
    experiment: str | None = setting(None, "experiment to train first, for its weights", "watch")


@dataclass
class AdapterConfig:
    """An adapter, which is trained while the weights of the model in `init.from` stay as they are."""

    name: Literal["none", "lora"] = setting("none", "lora: thin matrices beside the model's", "weights", aka="lora")
    rank: int = setting(8, "rank of their product", "weights", low=1, high=4096)
    alpha: int = setting(16, "the product is scaled by alpha / rank", "weights", low=1, high=10**6)
    targets: str = setting("all", "some of q,k,v,qkv,out,gate,up,down; all: every matrix of the blocks", "weights")


@dataclass
class ObjectiveConfig:
    """What is learned: the next token of a text, or answers that get a reward."""

    name: Literal["next_token", "grpo"] = setting("next_token", "grpo: right answers become likelier", "weights")
    task: Literal["sort7", "reverse9", "spell", "reverse", "count", "add", "sort", "copy"] = setting(
        "sort7", "grpo: task of the questions (docs/CHAT.md)", "weights"
    )
    answers: int = setting(8, "grpo: answers to each question", "weights", low=2, high=4096)


@dataclass
class TrainConfig:
    """Train a GPT, or continue a run.

    Examples:
      minigpt train
      minigpt train experiment=shakespeare_char_cpu
      minigpt train model=gpt-mini trainer.max_steps=500 optimizer.lr=6e-4 run.dir=runs/mine
      minigpt train data=text data.source=my_texts/ tokenizer=bpe
      minigpt train data.source=my_texts/ budget=20min
    """

    budget: str | None = setting(
        None, "time for the whole command (90s, 20min, 8h), which sizes the model and its training", "schedule"
    )
    seed: int = setting(1337, "weights, data order and dropout follow from it", "weights", low=0, high=2**32 - 1)
    batch_tokens: int = setting(
        4096, "tokens per step, on all devices", "weights", aka="batch_size batch", low=1, high=2**40
    )
    experiment: str = setting("default", "name of the chosen experiment; the run directory carries it", "watch")
    model: ModelConfig = field(default_factory=ModelConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    validate: ValidateConfig = field(default_factory=ValidateConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    run: RunConfig = field(default_factory=RunConfig)
    init: InitConfig = field(default_factory=InitConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    # Not settings, but facts about the command line: typed keys and the time, for budget=, and --config-dir.
    typed: frozenset[str] = field(default=frozenset(), compare=False)
    folder: Path | None = field(default=None, compare=False)
    since: float = field(default_factory=time.monotonic, compare=False)


@dataclass
class WorkConfig:
    """How the work of preparing is distributed. The tokens are the same for every choice."""

    workers: int = setting(0, "processes that encode; 0: one for each core", "machine", low=0, high=4096)
    engine: Literal["processes", "ray"] = setting("processes", "ray: on a Ray cluster (an extra)", "machine")


@dataclass
class PrepareConfig:
    """Turn text into tokens, without training.

    Examples:
      minigpt prepare
      minigpt prepare data=text data.source=my_texts/ tokenizer=bpe tokenizer.vocab_size=4096
    """

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    prepare: WorkConfig = field(default_factory=WorkConfig)
    ray_address: str | None = setting(
        None, "prepare.engine=ray: auto, host:6379, ray://...; null: RAY_ADDRESS", "machine", key="ray.address"
    )


@dataclass
class ModelRef:
    """The trained model that a command reads."""

    checkpoint: str | None = setting(
        None, "run, checkpoint or model; its key may be left out", "watch", model=True, required=True, words=True
    )
    which: Which = setting("best", "which checkpoint of a run", "watch")


@dataclass
class Writer:
    """Device, precision and code with which a model writes."""

    device: Device = setting("auto", "where to compute", "machine")
    precision: Literal["fp32", "bf16", "int8", "fp64"] = setting("fp32", "int8: weights only", "machine")
    compile: Toggle = setting("auto", "native code; auto: on a CPU with a C++ compiler", "machine")


@dataclass
class SampleConfig(Writer, ModelRef):
    """Write text with a trained GPT.

    Examples:
      minigpt sample checkpoint=runs/NAME prompt="def f(x):"
      minigpt sample runs/NAME prompt=Once prompt=Twice temperature=0 max_new_tokens=50
      minigpt sample checkpoint=runs/NAME prompt_file=start.txt stop='["\\n\\n"]'
    """

    adapter: str | None = setting(None, "run or peft folder with an adapter for the model", "watch", model=True)
    prompt: list[str] = setting([], "may be given several times: a batch", "watch", aka="start", literal=True)
    prompt_file: str | None = setting(None, "a file whose whole text is one prompt", "watch", file=True)
    max_new_tokens: int = setting(256, "tokens to write per sample", "watch", aka="max_tokens length", low=1)
    temperature: float = setting(0.8, "0 = greedy", "watch", aka="temp", low=0)
    top_k: int = setting(0, "keep the k most likely tokens; 0 = off", "watch", low=0)
    top_p: float = setting(1.0, "keep the smallest set this likely (nucleus); 1 = off", "watch", above=0, high=1)
    min_p: float = setting(0.0, "drop tokens below this part of the likeliest; 0 = off", "watch", low=0, high=1)
    repetition_penalty: float = setting(1.0, "> 1: tokens used before get rarer (CTRL); 1 = off", "watch", above=0)
    num_samples: int = setting(1, "samples per prompt", "watch", aka="n num", low=1)
    seed: int = setting(1337, "randomness follows from seed, sample and position", "watch", low=0, high=2**32 - 1)
    stop: list[str] = setting([], "text, or JSON list of texts; writing ends before the first", "watch")
    stream: bool = setting(True, "print text as it is made (one prompt, one sample)", "watch")
    interactive: bool = setting(False, "ask for prompts at the terminal", "watch")
    allow_special: bool = setting(False, "let <|endoftext|> in a prompt become the control token", "watch")
    use_cache: bool = setting(True, "KV cache; the text is the same without it", "machine")


@dataclass
class SearchConfig:
    """The search space of a sweep and its method: configs/search/NAME.yaml, or your own settings."""

    space: dict[str, Any] = setting({}, "setting -> {low, high, log or step} or {choices: [...]}", "weights")
    sampler: Literal["tpe", "random", "grid"] = setting("tpe", "how the next trial's values are chosen", "weights")
    pruner: Literal["none", "median", "hyperband"] = setting("none", "what ends bad trials early", "weights")
    startup_trials: int = setting(5, "random trials (tpe), complete ones (median) at first", "weights", low=1)
    prune_every_tokens: int = setting(0, "tokens between comparisons; 0 = validations", "weights", low=0, high=10**18)
    reduction_factor: int = setting(3, "hyperband: one in so many survives a comparison", "weights", low=2, high=100)


@dataclass
class SweepSettings:
    """The sweep's directory and its limits."""

    dir: str | None = setting(None, "default sweeps/<experiment>-<search>-<hash>", "watch", folder=True)
    metric: Literal["val/loss", "val/bits_per_byte"] = setting("val/loss", "a trial's value is its best", "weights")
    seed: int = setting(1, "of the choice of values; the trials' own seed is `seed`", "weights", low=0, high=2**32 - 1)
    hang_minutes: float = setting(30.0, "a trial is killed after so long without a new row; 0 = off", "machine", low=0)
    max_failures: int = setting(5, "failed trials in a row that stop the sweep; 0 = never", "machine", low=0)


@dataclass
class SweepConfig(TrainConfig):
    """Search for better settings by many trainings.

    Every setting of `train` can be given, too: all trials share it.

    Examples:
      minigpt sweep search=lr experiment=demo trials=12 workers=2
      minigpt sweep search=shakespeare_char_cpu experiment=shakespeare_char_cpu seeds=3
      minigpt sweep search.space='{"model.n_layer": {"choices": [2,4]}}' search.sampler=grid
    """

    trials: int | None = setting(None, "how many, finished ones included; default 20, or the grid", "watch", low=1)
    workers: int = setting(1, "trials at a time on this machine", "machine", low=1, high=4096)
    seeds: int = setting(1, "runs per trial: seed, seed + 1, ...; its value is their mean", "weights", low=1, high=1000)
    search: SearchConfig = field(default_factory=SearchConfig)
    sweep: SweepSettings = field(default_factory=SweepSettings)
