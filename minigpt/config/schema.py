"""Every option of minigpt: its name, type, default and meaning. The one truth of the configuration.

Standard library only, so a config can be read and checked without torch. YAML files under configs/
hold named differences from these defaults; the command line comes last. The comment behind a field
is its documentation: `--help` prints it. Literal types hold the allowed words; check.py holds the
allowed ranges.
"""

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass
class ModelConfig:
    """The transformer. GPT-2's architecture unless a value says otherwise."""

    n_layer: int = 4  # transformer blocks
    n_head: int = 4  # attention heads per block; must divide n_embd
    n_embd: int = 128  # model width C
    block_size: int = 128  # context length T in tokens
    dropout: float = 0.0  # after embeddings, on attention weights, after both projections of a block
    bias: bool = True  # biases in Linear and LayerNorm layers (GPT-2: true)
    activation: Literal["gelu_tanh", "gelu", "relu_squared"] = "gelu_tanh"  # GPT-2's; gelu is exact (nanoGPT)
    attention: Literal["softmax", "rotary", "linear"] = "softmax"  # rotary: with positions inside, and none embedded
    checkpoint_activations: bool = False  # recompute activations in the backward pass: less memory, ~1/3 more work


@dataclass
class TokenizerConfig:
    """Text to tokens."""

    name: str = "bpe"  # byte | char | bpe (trained on the corpus) | gpt2 (GPT-2's own)
    vocab_size: int = 2048  # bpe only: tokens in all, the end-of-text token included


@dataclass
class DataConfig:
    """Where the text comes from and where its tokens are kept."""

    name: Literal["stdlib", "shakespeare_char", "text"] = "stdlib"  # stdlib: Python's own source, nothing to download
    source: str | None = None  # text: file or folder; shakespeare_char: a local copy of the file
    dir: str = "data"  # prepared token shards land here
    val_fraction: float = 0.1  # the last part of the text, held out for validation
    encoding: str = "utf-8"  # of the source files
    errors: Literal["strict", "replace"] = "strict"  # what to do with bytes that are not valid text in `encoding`


@dataclass
class OptimizerConfig:
    """The run's one optimizer."""

    name: Literal["adamw", "muon"] = "adamw"  # muon: the blocks' matrices by Muon, the rest by AdamW
    lr: float = 1e-3  # peak learning rate
    matrix_lr: float = 0.02  # muon only: peak learning rate of the blocks' matrices
    momentum: float = 0.95  # muon only: decay of the gradient's running mean
    beta1: float = 0.9  # decay of the gradient's running mean
    beta2: float = 0.99  # decay of its running square
    eps: float = 1e-8  # added to the denominator
    weight_decay: float = 0.1  # decoupled, on matrices only (not on biases, norms)
    grad_clip: float = 1.0  # global gradient norm limit; 0 = off


@dataclass
class ScheduleConfig:
    """The learning rate over the run: linear warm-up, then this shape."""

    name: Literal["cosine", "linear", "wsd", "constant"] = "cosine"  # wsd: constant, then linear decay
    warmup_steps: int = 100  # optimizer steps of linear warm-up
    final_lr_fraction: float = 0.1  # learning rate at the end, as a fraction of the peak
    decay_fraction: float = 0.3  # wsd only: the last part of the run in which the rate falls


@dataclass
class TrainerConfig:
    """How long to train, and on what. `auto` is decided by config and hardware, then kept by the run."""

    max_steps: int | None = 2000  # optimizer steps
    max_tokens: int | None = None  # stop after this many tokens; overrides max_steps
    max_minutes: float | None = None  # stop after this much training time as well
    patience: int = 0  # stop after this many validations without a better val/loss; 0 = off
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"  # what computes
    devices: int = 1  # processes; more than one needs strategy=ddp
    strategy: Literal["auto", "ddp"] = "auto"  # auto: one process; ddp: one per device
    precision: Literal["auto", "fp32", "bf16", "fp64"] = "auto"  # fp64 is for tests
    compile: Literal["auto", "on", "off"] = "auto"  # torch.compile
    attention_kernel: Literal["auto", "explicit", "fused"] = "auto"  # two ways to the same numbers
    threads: int = 0  # CPU threads; 0 = auto
    micro_batch: int = 0  # sequences per forward pass and device; 0 = auto
    deterministic: bool = False  # CUDA: same bits on every run, slower. A CPU run always is


@dataclass
class ValidateConfig:
    """Validation covers the whole validation split each time."""

    every_steps: int = 250  # optimizer steps between validations; 0 = only at the end
    batch: int = 0  # sequences per forward pass; 0 = auto


@dataclass
class SamplesConfig:
    """Text written by the model while it trains."""

    every_steps: int = 500  # optimizer steps between live samples; 0 = none
    max_new_tokens: int = 64  # length of each
    temperature: float = 0.8  # 0 = greedy
    top_k: int = 50  # 0 = off
    prompt: str = ""  # empty: start from end-of-text (or a newline)


@dataclass
class GuardConfig:
    """What happens to a step whose loss or gradient is not finite: it never reaches the weights."""

    max_skips: int = 10  # bad steps skipped in a row before the run goes back to its last good checkpoint
    max_rollbacks: int = 3  # times the run may go back before it stops with exit code 5
    spike_zscore: float = 0.0  # also skip losses this many standard deviations above the recent mean; 0 = off
    spike_window: int = 128  # good steps that the recent mean is taken over


@dataclass
class CheckpointConfig:
    """Durable checkpoints in run.dir/checkpoints/."""

    every_steps: int = 250  # optimizer steps between saves; one is always made at the end
    keep_last: int = 2  # newest ones kept, at least 2
    keep_every_steps: int = 0  # also keep every n-th step for good; 0 = off


@dataclass
class LoggerConfig:
    """metrics.jsonl is always written; wandb comes on top."""

    name: Literal["files", "wandb"] = "files"  # what is written besides
    every_steps: int = 10  # optimizer steps between rows and progress lines
    project: str = "minigpt"  # wandb only
    mode: Literal["offline", "online"] = "offline"  # wandb only
    group: str | None = None  # wandb only


@dataclass
class RunConfig:
    """The run directory."""

    dir: str | None = None  # default runs/<experiment>-<hash of the config>


@dataclass
class InitConfig:
    """Starting weights."""

    source: str | None = field(default=None, metadata={"key": "from"})  # run or checkpoint whose weights to start from


@dataclass
class TrainConfig:
    """scripts/train.py."""

    seed: int = 1337  # weights, data order and dropout follow from it
    batch_tokens: int = 4096  # tokens per optimizer step, over all devices and micro-batches
    experiment: str = "default"  # name of the chosen experiment; the run directory carries it
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
    """scripts/prepare_data.py."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    data: DataConfig = field(default_factory=DataConfig)


@dataclass
class SampleConfig:
    """scripts/sample.py."""

    checkpoint: str | None = None  # a run directory (its best checkpoint) or a checkpoint directory
    which: Literal["best", "latest"] = "best"  # of a run's checkpoints
    prompt: list[str] = field(default_factory=list)  # repeat prompt=... for several prompts in one batch
    prompt_file: str | None = None  # a file whose whole text is one prompt
    max_new_tokens: int = 256  # tokens to write per sample
    temperature: float = 0.8  # 0 = greedy
    top_k: int = 0  # keep the k most likely tokens; 0 = off
    top_p: float = 1.0  # keep the smallest set with this probability (nucleus); 1 = off
    min_p: float = 0.0  # drop tokens below this fraction of the likeliest one's probability; 0 = off
    repetition_penalty: float = 1.0  # > 1 makes tokens already present less likely (CTRL); 1 = off
    num_samples: int = 1  # samples per prompt
    seed: int = 1337  # a sample's randomness follows from seed, sample and position only
    stop: list[str] = field(default_factory=list)  # JSON list of strings; writing ends before the first
    stream: bool = True  # print text as it is made (one prompt, one sample)
    interactive: bool = False  # ask for prompts at the terminal
    allow_special: bool = False  # let <|endoftext|> in a prompt become the control token
    use_cache: bool = True  # KV cache; the text is the same without it
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"  # what computes
    precision: Literal["fp32", "bf16", "int8", "fp64"] = "fp32"  # int8: weights rounded to 8 bits, the rest in fp32
    compile: Literal["auto", "on", "off"] = "auto"  # a token's step as native code: auto = on a CPU with a C++ compiler


@dataclass
class SearchConfig:
    """What a sweep searches, and how: configs/search/NAME.yaml, or settings of your own."""

    space: dict[str, Any] = field(default_factory=dict)  # setting -> {low, high, log or step} or {choices: [...]}
    sampler: Literal["tpe", "random", "grid"] = "tpe"  # how the next trial's values are chosen
    pruner: Literal["none", "median", "hyperband"] = "none"  # when a trial that falls behind is stopped early
    startup_trials: int = 5  # tpe: so many are random; median: so many must be complete before one is pruned
    prune_every_tokens: int = 0  # trials are compared at multiples of so many tokens; 0 = at each validation
    reduction_factor: int = 3  # hyperband: one in so many goes on from each comparison


@dataclass
class SweepSettings:
    """The sweep's directory and its limits."""

    dir: str | None = None  # default sweeps/<experiment>-<search>-<hash>
    storage: str | None = None  # URL of a database (sqlite:///FILE, postgresql://...); default DIR/journal.jsonl
    metric: Literal["val/loss", "val/bits_per_byte"] = "val/loss"  # a trial's value is its best validation
    seed: int = 1  # of the choice of values; the trials' own seed is `seed`
    hang_minutes: float = 30.0  # a trial without a new row in metrics.jsonl for so long is killed; 0 = off
    max_failures: int = 5  # so many failed trials in a row stop the sweep; 0 = never


@dataclass
class SweepConfig:
    """scripts/sweep.py; every other setting is one of scripts/train.py and the same for all trials."""

    trials: int | None = None  # settings to try, finished ones included; default 20, or the whole grid
    workers: int = 1  # trials at a time on this machine, each with its own devices and threads
    seeds: int = 1  # runs per trial: seed, seed + 1, ...; its value is their mean
    search: SearchConfig = field(default_factory=SearchConfig)
    sweep: SweepSettings = field(default_factory=SweepSettings)
