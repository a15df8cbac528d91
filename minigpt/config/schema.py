"""Every setting of minigpt: its name, type, default, meaning, range and role. The one truth of the configuration.

Standard library only, so a config can be read and checked without torch. YAML files under configs/ hold named
differences from these defaults; the command line comes last. `--help` prints the meanings. Literal types hold the
allowed words. A new setting's default must reproduce what was before it.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

# What a setting decides:
#   weights   the trained weights; fixed for a run. It is part of the run's name.
#   content   the weights, but by what is found at this path, which is compared instead: the path may change.
#   schedule  the weights from now on; it may change when a run continues. It is part of the run's name.
#   machine   where and how fast the work is done; it may change.
#   watch     only what is shown or kept, and where; it may change.
Role = Literal["weights", "content", "schedule", "machine", "watch"]


@dataclass(frozen=True)
class Setting:
    """All that is known about one setting."""

    meaning: str = ""
    role: Role = "weights"
    low: float | None = None  # a number must be at least this
    above: float | None = None  # ... more than this
    high: float | None = None  # ... at most this
    below: float | None = None  # ... less than this
    literal: bool = False  # text is taken as it is typed: null, 123 and ${x} are text here
    required: bool = False  # it must be given, and not be empty
    words: bool = False  # a list of all arguments that are not key=value
    key: str = ""  # the name that users type, where it is no Python name
    since: str = ""  # the first version that has it, if that is later than 0.1.0
    kind: Any = None  # its type
    default: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole number, or one or null."""
        return int in (self.kind, *get_args(self.kind))


def setting(default: Any, meaning: str, role: Role, **more: Any) -> Any:
    """Return a dataclass field that is a setting.

    Args:
        default: its value unless a file or the command line gives another.
        meaning: what --help prints.
        role: what it decides.
        more: further fields of Setting.
    """
    metadata = {"setting": Setting(meaning, role, **more)}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


# Settings that are no more -> why. Stored, they are ignored; typed, they are refused.
REMOVED = {
    "data.workers": "batches are made in the training process, hundreds of times as fast as it trains on them",
}


@dataclass
class ModelConfig:
    """The transformer. GPT-2's architecture unless a value says otherwise."""

    n_layer: int = setting(4, "transformer blocks", "weights", low=1, high=10_000)
    n_head: int = setting(4, "attention heads per block; must divide n_embd", "weights", low=1, high=10_000)
    n_embd: int = setting(128, "model width C", "weights", low=1, high=1_000_000)
    block_size: int = setting(128, "context length T in tokens", "weights", low=1, high=2**24)
    dropout: float = setting(0.0, "on embeddings, attention weights and block outputs", "weights", low=0, below=1)
    bias: bool = setting(True, "biases in Linear and LayerNorm layers (GPT-2: true)", "weights")
    activation: Literal["gelu_tanh", "gelu", "relu_squared"] = setting(
        "gelu_tanh", "gelu_tanh is GPT-2's; gelu is exact (nanoGPT)", "weights"
    )
    attention: Literal["softmax", "rotary", "linear"] = setting(
        "softmax", "rotary: positions are in it, none embedded", "weights"
    )
    qk_norm: Literal["auto", "none", "layernorm"] = setting(
        "auto", "norm of queries and keys, head by head; auto: layernorm if rotary", "weights", since="0.2.0"
    )
    checkpoint_activations: bool = setting(False, "recompute in the backward pass: less memory, ~1/3 slower", "machine")


@dataclass
class TokenizerConfig:
    """Text to tokens."""

    name: str = setting("bpe", "byte | char | bpe (trained on the text) | gpt2 (GPT-2's own)", "weights")
    vocab_size: int = setting(2048, "bpe: number of tokens, with end-of-text", "weights", low=1, high=2**31 - 1)


@dataclass
class DataConfig:
    """Where the text comes from and where its tokens are kept."""

    name: Literal["stdlib", "shakespeare_char", "text"] = setting("stdlib", "stdlib: Python's own source", "weights")
    source: str | None = setting(None, "text: file or folder; shakespeare_char: a local copy", "content", literal=True)
    dir: str = setting("data", "folder for the prepared tokens", "watch", literal=True)
    val_fraction: float = setting(0.1, "last part of the text, held out for validation", "weights", above=0, below=1)
    encoding: str = setting("utf-8", "encoding of the source files", "weights")
    errors: Literal["strict", "replace"] = setting(
        "strict", "bytes that are not text in `encoding`: fail or replace", "weights"
    )


@dataclass
class OptimizerConfig:
    """The run's one optimizer."""

    name: Literal["adamw", "muon"] = setting("adamw", "muon: the blocks' matrices by Muon, others by AdamW", "weights")
    lr: float = setting(1e-3, "peak learning rate", "schedule", above=0)
    matrix_lr: float = setting(0.02, "muon only: peak learning rate of the blocks' matrices", "schedule", above=0)
    momentum: float = setting(0.95, "muon only: decay of the gradient's running mean", "schedule", low=0, below=1)
    beta1: float = setting(0.9, "decay of the gradient's running mean", "schedule", low=0, below=1)
    beta2: float = setting(0.99, "decay of its running square", "schedule", low=0, below=1)
    eps: float = setting(1e-8, "added to the denominator", "schedule", above=0)
    weight_decay: float = setting(0.1, "decoupled, on matrices only (not on biases, norms)", "schedule", low=0)
    grad_clip: float = setting(1.0, "global gradient norm limit; 0 = off", "schedule", low=0)


@dataclass
class ScheduleConfig:
    """The learning rate over the run: linear warm-up, then this shape."""

    name: Literal["cosine", "linear", "wsd", "constant"] = setting(
        "cosine", "wsd: flat, then a linear decay", "schedule"
    )
    warmup_steps: int = setting(100, "optimizer steps of linear warm-up", "schedule", low=0)
    final_lr_fraction: float = setting(0.1, "final learning rate as a fraction of the peak", "schedule", low=0, high=1)
    decay_fraction: float = setting(
        0.3, "wsd only: last part of the run, in which the rate falls", "schedule", low=0, high=1
    )


@dataclass
class TrainerConfig:
    """How long to train, and on what. `auto` is decided by config and hardware, then kept by the run."""

    max_steps: int | None = setting(2000, "optimizer steps", "schedule", low=1)
    max_tokens: int | None = setting(
        None, "stop after so many tokens; overrides max_steps", "schedule", low=1, high=10**18
    )
    max_minutes: float | None = setting(None, "stop after this much training time as well", "schedule", above=0)
    patience: int = setting(0, "stop after this many validations without a better val/loss; 0 = off", "schedule", low=0)
    device: Literal["auto", "cuda", "mps", "cpu"] = setting("auto", "what computes", "machine")
    devices: int = setting(1, "processes; more than one needs strategy=ddp", "machine", low=1, high=65_536)
    strategy: Literal["auto", "ddp"] = setting("auto", "auto: one process; ddp: one per device", "machine")
    precision: Literal["auto", "fp32", "bf16", "fp64"] = setting("auto", "fp64 is for tests", "weights")
    compile: Literal["auto", "on", "off"] = setting("auto", "torch.compile", "machine")
    attention_kernel: Literal["auto", "explicit", "fused"] = setting("auto", "two ways to the same numbers", "machine")
    threads: int = setting(0, "CPU threads; 0 = auto", "machine", low=0, high=4096)
    micro_batch: int = setting(0, "sequences per forward pass and device; 0 = auto", "machine", low=0, high=2**24)
    deterministic: bool = setting(False, "CUDA: same bits on every run, slower. A CPU run always is", "machine")


@dataclass
class ValidateConfig:
    """Validation covers the whole validation split each time."""

    every_steps: int = setting(250, "optimizer steps between validations; 0 = only at the end", "schedule", low=0)
    batch: int = setting(0, "sequences per forward pass; 0 = auto", "machine", low=0, high=2**24)


@dataclass
class SamplesConfig:
    """Text written by the model while it trains."""

    every_steps: int = setting(500, "optimizer steps between live samples; 0 = none", "watch", low=0)
    max_new_tokens: int = setting(64, "length of each", "watch", low=1)
    temperature: float = setting(0.8, "0 = greedy", "watch", low=0)
    top_k: int = setting(50, "0 = off", "watch", low=0)
    prompt: str = setting("", "empty: start from end-of-text (or a newline)", "watch", literal=True)


@dataclass
class GuardConfig:
    """What happens to a step whose loss or gradient is not finite: it never reaches the weights."""

    max_skips: int = setting(
        10, "bad steps skipped in a row before the run goes back to a checkpoint", "schedule", low=0
    )
    max_rollbacks: int = setting(3, "times the run may go back before it stops with exit code 5", "schedule", low=0)
    spike_zscore: float = setting(
        0.0, "skip losses this many standard deviations above the mean; 0 = off", "schedule", low=0
    )
    spike_window: int = setting(128, "good steps that the recent mean is taken over", "schedule", low=16)


@dataclass
class CheckpointConfig:
    """Durable checkpoints in run.dir/checkpoints/."""

    every_steps: int = setting(250, "optimizer steps between saves; one is always made at the end", "watch", low=1)
    keep_last: int = setting(2, "newest ones kept, at least 2", "watch", low=2)
    keep_every_steps: int = setting(0, "also keep every n-th step for good; 0 = off", "watch", low=0)


@dataclass
class LoggerConfig:
    """metrics.jsonl is always written; wandb or TensorBoard comes on top."""

    name: Literal["files", "wandb", "tensorboard"] = setting("files", "what is written besides", "watch")
    every_steps: int = setting(10, "optimizer steps between rows and progress lines", "watch", low=1)
    project: str = setting("minigpt", "wandb only", "watch")
    mode: Literal["offline", "online"] = setting("offline", "wandb only", "watch")
    group: str | None = setting(None, "wandb only", "watch")


@dataclass
class RunConfig:
    """The run directory."""

    dir: str | None = setting(None, "default runs/<experiment>-<hash of the config>", "watch", literal=True)


@dataclass
class InitConfig:
    """Starting weights."""

    source: str | None = setting(None, "run or checkpoint to take weights from", "weights", key="from", literal=True)


@dataclass
class TrainConfig:
    """Train a GPT, or continue a run."""

    seed: int = setting(1337, "weights, data order and dropout follow from it", "weights", low=0, high=2**32 - 1)
    batch_tokens: int = setting(
        4096, "tokens per optimizer step, on all devices together", "weights", low=1, high=2**40
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


@dataclass
class PrepareConfig:
    """Turn text into tokens, without training."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)


@dataclass
class SampleConfig:
    """Write text with a trained GPT."""

    checkpoint: str | None = setting(None, "a run directory or a checkpoint in it", "watch", literal=True)
    which: Literal["best", "latest"] = setting("best", "of a run's checkpoints", "watch")
    prompt: list[str] = setting([], "repeat prompt=... for several prompts in one batch", "watch", literal=True)
    prompt_file: str | None = setting(None, "a file whose whole text is one prompt", "watch", literal=True)
    max_new_tokens: int = setting(256, "tokens to write per sample", "watch", low=1)
    temperature: float = setting(0.8, "0 = greedy", "watch", low=0)
    top_k: int = setting(0, "keep the k most likely tokens; 0 = off", "watch", low=0)
    top_p: float = setting(
        1.0, "keep the smallest set of this probability (nucleus); 1 = off", "watch", above=0, high=1
    )
    min_p: float = setting(
        0.0, "drop tokens below this fraction of the best probability; 0 = off", "watch", low=0, high=1
    )
    repetition_penalty: float = setting(
        1.0, "> 1: tokens already there get less likely (CTRL); 1 = off", "watch", above=0
    )
    num_samples: int = setting(1, "samples per prompt", "watch", low=1)
    seed: int = setting(1337, "randomness follows from seed, sample and position", "watch", low=0, high=2**32 - 1)
    stop: list[str] = setting([], "JSON list of strings; writing ends before the first", "watch")
    stream: bool = setting(True, "print text as it is made (one prompt, one sample)", "watch")
    interactive: bool = setting(False, "ask for prompts at the terminal", "watch")
    allow_special: bool = setting(False, "let <|endoftext|> in a prompt become the control token", "watch")
    use_cache: bool = setting(True, "KV cache; the text is the same without it", "machine")
    device: Literal["auto", "cuda", "mps", "cpu"] = setting("auto", "what computes", "machine")
    precision: Literal["fp32", "bf16", "int8", "fp64"] = setting(
        "fp32", "int8: weights only, the rest in fp32", "machine"
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "native code: auto = on a CPU with a C++ compiler", "machine"
    )


@dataclass
class SearchConfig:
    """What a sweep searches, and how: configs/search/NAME.yaml, or settings of your own."""

    space: dict[str, Any] = setting({}, "setting -> {low, high, log or step} or {choices: [...]}", "weights")
    sampler: Literal["tpe", "random", "grid"] = setting("tpe", "how the next trial's values are chosen", "weights")
    pruner: Literal["none", "median", "hyperband"] = setting(
        "none", "when a trial that falls behind is ended", "weights"
    )
    startup_trials: int = setting(
        5, "tpe: random trials at first; median: complete ones before pruning", "weights", low=1
    )
    prune_every_tokens: int = setting(
        0, "tokens between comparisons of trials; 0 = at each validation", "weights", low=0, high=10**18
    )
    reduction_factor: int = setting(3, "hyperband: one in so many survives a comparison", "weights", low=2, high=100)


@dataclass
class SweepSettings:
    """The sweep's directory and its limits."""

    dir: str | None = setting(None, "default sweeps/<experiment>-<search>-<hash>", "watch", literal=True)
    storage: str | None = setting(
        None, "URL of a database (sqlite:///FILE ...); default DIR/journal.jsonl", "watch", literal=True
    )
    metric: Literal["val/loss", "val/bits_per_byte"] = setting(
        "val/loss", "a trial's value is the best of its run", "weights"
    )
    seed: int = setting(1, "of the choice of values; the trials' own seed is `seed`", "weights", low=0, high=2**32 - 1)
    hang_minutes: float = setting(30.0, "a trial is killed after so long without a new row; 0 = off", "machine", low=0)
    max_failures: int = setting(5, "failed trials in a row that stop the sweep; 0 = never", "machine", low=0)


@dataclass
class SweepConfig(TrainConfig):
    """Search for better settings by many trainings. Every setting of `train` can be given, too: all trials share it."""

    trials: int | None = setting(None, "how many, finished ones included; default 20, or the grid", "watch", low=1)
    workers: int = setting(1, "trials at a time on this machine", "machine", low=1, high=4096)
    seeds: int = setting(1, "runs per trial: seed, seed + 1, ...; its value is their mean", "weights", low=1, high=1000)
    search: SearchConfig = field(default_factory=SearchConfig)
    sweep: SweepSettings = field(default_factory=SweepSettings)


@dataclass
class TokensConfig:
    """Where prepared tokens are."""

    dir: str | None = setting(None, "folder of prepared tokens, if not where the runs say", "watch", literal=True)


@dataclass
class CompareConfig:
    """Say which run predicts better, and how sure that is: RUN_A RUN_B ... [key=value ...]

    Each run's best checkpoint is scored on the whole validation split, window by window, and the paired differences are
    judged. Runs that differ in nothing but the seed are one side. `RUN ... vs RUN ...` divides the sides by hand.
    """

    runs: list[str] = setting([], "runs or checkpoints, and `vs`", "watch", literal=True, words=True, required=True)
    which: Literal["best", "latest"] = setting("best", "of a run's checkpoints", "watch")
    device: Literal["auto", "cuda", "mps", "cpu"] = setting("auto", "what computes", "machine")
    data: TokensConfig = field(default_factory=TokensConfig)


@dataclass
class OneRunConfig:
    """The run directory."""

    dir: str | None = setting(
        None, "the folder of a run, like runs/demo-1a2b3c4d", "watch", literal=True, required=True
    )


@dataclass
class ReportConfig:
    """Draw a run's loss.png and report.html again."""

    run: OneRunConfig = field(default_factory=OneRunConfig)


@dataclass
class VerifyResumeConfig:
    """Prove on this machine that a killed run ends with the same bytes. Takes the settings of `train`, too.

    It trains twice, once in one go and once killed with SIGKILL at random moments, and compares every byte.
    Exit code 0: the same bytes, 1: other bytes.
    """

    kills: int = setting(5, "how often the run is killed", "watch", low=1, high=10_000)


@dataclass
class DrawAttentionConfig:
    """Draw what each head attends to."""

    checkpoint: str | None = setting(None, "a run directory or a checkpoint in it", "watch", literal=True)
    text: str = setting("", "what the model reads", "watch", literal=True, required=True)
    out: str | None = setting(None, "folder for the pictures; default RUN/attention", "watch", literal=True)
    which: Literal["best", "latest"] = setting("best", "of a run's checkpoints", "watch")


@dataclass
class BenchmarkConfig:
    """Measure the speed of this machine, beside other programs. Takes the settings of `train`, too: all share them.

    Tokens are made on the spot, the same for all contenders; nothing is downloaded. The last line holds the ratios.
    """

    preset: Literal["c0", "c1", "124m"] = setting(
        "c0", "size: c0 nanoGPT's CPU preset, c1 10.6M parameters, 124m GPT-2", "weights"
    )
    what: str = setting("training,sampling,tokenization,loading", "parts to measure", "watch")
    rounds: int = setting(5, "measurements of each contender, in turn, each in a process", "watch", low=1, high=10**6)
    steps: int | None = setting(None, "timed in a measurement; c0 300, c1 40, 124m 60", "watch", low=1, high=10**6)
    nanogpt: str | None = setting(None, "a checkout, which runs beside; losses must agree", "watch", literal=True)
    curve_steps: int = setting(50, "optimizer steps of the comparison of the losses", "watch", low=2, high=10**6)
    new_tokens: int | None = setting(None, "sampling; c0 48, c1 240, 124m 64", "watch", low=2, high=10**6)
    huggingface: bool = setting(False, "whether GPT2LMHeadModel runs beside, in fp32 and bf16", "watch")
