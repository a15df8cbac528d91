"""`minigpt benchmark what=scaling`: the same step on 1, 2, 4 ... processes, and calculated for more."""

import gc
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from torch.distributed.device_mesh import DeviceMesh

from minigpt.benchmark.bench import say
from minigpt.benchmark.scaling.replica import Replica, mesh_of, run_collective, slowest
from minigpt.benchmark.scaling.ring import Collective, Line, Load, collectives, fit, on_paper
from minigpt.benchmark.scaling.rows import HEADS, Row, beyond, cells, point_of, summary
from minigpt.benchmark.settings import Plan
from minigpt.benchmark.table import markdown, number
from minigpt.config.convert import flatten, to_dict
from minigpt.config.schema import TrainConfig
from minigpt.faults import UserFault
from minigpt.files import write_file, write_json
from minigpt.machine.budget import budget_of, plan_of, weights_of
from minigpt.machine.choices import Choices, choose
from minigpt.machine.compiling import set_up_torch
from minigpt.machine.hardware import Hardware, find_device
from minigpt.machine.memory import is_out_of_memory
from minigpt.machine.sharding import parts_of, reshards
from minigpt.ranks.allocator import keep_freed_memory
from minigpt.ranks.group import Processes, joined
from minigpt.ranks.signals import Signals
from minigpt.report.scaling import draw_scaling
from minigpt.rundir.run_directory import environment

SECONDS = 3.0  # of a measurement, about
MOST_BYTES = 64 << 20  # of the largest tensor with which collectives are timed
LEAST_BYTES = 4096
LINE_HEADS = ["devices", "collective", "processes", "MB", "ms", "on paper, ms", "alpha, us", "beta, GB/s"]

Lines = dict[tuple[str, str], Line]  # (kind, group) of a collective -> the connection


@dataclass(frozen=True)
class Setup:
    """What all measurements share."""

    plan: Plan
    config: TrainConfig  # of the training on all devices
    choices: Choices
    processes: Processes

    def load(self, accumulate: int) -> Load:
        """Return what a step of `accumulate` micro-batches has to send."""
        trainer, model = self.config.trainer, self.config.model
        weights = weights_of(model, self.plan.vocab_size, 8 if self.choices.precision == "fp64" else 4)
        frees = reshards(trainer, replace(self.choices, accumulate=accumulate))
        half = 0.5 if trainer.gather == "bf16" else 1.0
        passes = accumulate if frees else 1
        return Load(model.n_layer, weights.block, weights.root, passes, frees, half)

    def collectives(self, devices: int, accumulate: int) -> list[Collective]:
        """Return the collectives of a step."""
        shards = parts_of(self.config.trainer)
        return collectives(self.config.trainer.strategy, self.load(accumulate), devices, shards)

    def accumulate(self, devices: int, batch: str) -> int:
        """Return the number of micro-batches that each device has in a step."""
        return self.choices.accumulate * (self.choices.devices // devices if batch == "strong" else 1)


def scaling(plan: Plan) -> int:
    """Measure, print, and write scaling.md, scaling.json and scaling.png; every process of the run calls it.

    Raises:
        UserFault: the processes are not those that the settings ask for, or a micro-batch does not fit.
    """
    folder = Path(plan.config.write_to or ".")
    folder.mkdir(parents=True, exist_ok=True)  # now: a fault must not come after all is measured
    config = replace(plan.config, trainer=replace(plan.config.trainer, max_steps=plan.config.steps))
    with Signals() as signals:
        hardware = find_device(config)
        with joined(config.trainer, hardware.device, signals, folder) as processes:
            processes.require_equal_on_all_ranks("settings", flatten(to_dict(config)))
            choices = choose(config, hardware, plan.vocab_size)
            processes.require_equal_on_all_ranks("choices", asdict(choices))
            set_up_torch(choices, deterministic=config.trainer.deterministic)
            keep_freed_memory()
            try:
                measure_all(Setup(plan, config, choices, processes), hardware, folder)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                remedy = f"Give a smaller trainer.micro_batch (now {choices.micro_batch})"
                raise UserFault(f"a micro-batch does not fit the memory of a device. {remedy}") from None
    return 0


def measure_all(setup: Setup, hardware: Hardware, folder: Path) -> None:
    """Measure each number of devices in turn, print the results, and let rank 0 write them."""
    config, choices, rank = setup.config, setup.choices, setup.processes.rank
    about = describe(setup, hardware)
    say("\n".join(about))
    rows: list[Row] = []
    lines: Lines = {}
    timed: list[list[str]] = []
    for devices in sizes(config.trainer.nodes, config.trainer.devices):
        shards = parts_of(config.trainer) if config.trainer.strategy == "hsdp" else devices
        mesh = mesh_of(choices.device, devices, shards)  # all processes make it, also those that don't take part
        for batch in ("both",) if devices == choices.devices else ("weak", "strong"):
            need = bytes_needed(setup, devices, batch)
            if need > hardware.memory_bytes:
                say(f"{devices} device(s), {batch} are left out: {need / 1e9:.1f} GB of memory are needed")
            elif rank < devices:
                if mesh is not None and batch != "strong":
                    lines, more = time_collectives(setup, devices, mesh)
                    timed += more
                rows.append(measure_step(setup, devices, batch, mesh, lines))
                say(f"{devices} device(s), {batch:<6} {1e3 * rows[-1].step:10,.2f} ms/step")
            setup.processes.wait()
    if rank == 0:
        if not rows:
            raise UserFault("not even all devices together hold a step. Use trainer=fsdp, or a smaller model")
        share = choices.accumulate * choices.micro_batch
        later = beyond(rows[-1], share, lambda devices: paper_of(setup, devices, lines)) if lines else []
        write_results(setup, [*rows, *later], timed, about=about, folder=folder)


def paper_of(setup: Setup, devices: int, lines: Lines) -> tuple[float, float]:
    """Return the calculated seconds of a step's collectives, and the bytes that each process sends."""
    made = setup.collectives(devices, setup.choices.accumulate)
    return on_paper(made, lines), sum(each.sent for each in made)


def write_results(
    setup: Setup, rows: Sequence[Row], timed: list[list[str]], *, about: Sequence[str], folder: Path
) -> None:
    """Print the tables, and write them with the picture."""
    tables = f"{markdown(HEADS, [cells(row, rows) for row in rows])}\n\n{markdown(LINE_HEADS, timed)}"
    say(f"\n{tables}\n")
    write_file(folder / "scaling.md", "\n".join(["```", *about, "```", "", tables, ""]))
    write_json(folder / "scaling.json", {"about": about, "rows": [asdict(row) for row in rows]})
    preset, strategy = setup.plan.config.preset, setup.config.trainer.strategy
    title = f"{preset}, {strategy}, {setup.choices.devices} x {setup.choices.device}"
    draw_scaling([point_of(row, rows) for row in rows], title, folder / "scaling.png")
    last = [row for row in rows if row.measured][-1]
    say(f"Written to {folder / 'scaling.md'}, scaling.json and scaling.png\n{summary(rows, last)}")


def describe(setup: Setup, hardware: Hardware) -> list[str]:
    """Return lines with the machine, the settings and the layout."""
    config, choices = setup.config, setup.choices
    facts = ", ".join(f"{name} {value}" for name, value in environment().items())
    compiled = "compiled" if choices.compile else "not compiled"
    return [
        f"Machine    {time.strftime('%Y-%m-%d %H:%M:%S %Z')}, {hardware.name}, {facts}",
        f"Settings   preset={setup.plan.config.preset} {' '.join(setup.plan.settings)}",
        f"Layout     {config.trainer.strategy}, {config.trainer.nodes} host(s) of {config.trainer.devices} device(s), "
        f"{choices.accumulate} x {choices.micro_batch} sequences a step and device, {choices.precision}, {compiled}, "
        f"{choices.threads} thread(s) each, V={setup.plan.vocab_size}",
    ]


def sizes(nodes: int, devices: int) -> list[int]:
    """Return the numbers of devices to measure: parts of a host that double, whole hosts that double, and all."""
    on_host = [2**power for power in range(devices.bit_length()) if devices % 2**power == 0]
    hosts = [devices * 2**power for power in range(nodes.bit_length()) if nodes % 2**power == 0]
    return sorted({*on_host, *hosts, nodes * devices})


def bytes_needed(setup: Setup, devices: int, batch: str) -> int:
    """Return the memory of a step on a device, as budget.py counts it; on a CPU, on all devices of a host together."""
    config, choices = setup.config, replace(setup.choices, accumulate=setup.accumulate(devices, batch))
    plan = replace(plan_of(config, choices), devices=devices, shards=min(devices, parts_of(config.trainer)))
    kernel, here = choices.attention_kernel, min(devices, config.trainer.devices)
    need = budget_of(config, setup.plan.vocab_size, plan, precision=choices.precision, kernel=kernel).peak
    return need * (here if choices.device == "cpu" else 1)


def measure_step(setup: Setup, devices: int, batch: str, mesh: DeviceMesh | None, lines: Lines) -> Row:
    """Time a step with and without its communication, in turn, and its collectives alone."""
    accumulate, rounds = setup.accumulate(devices, batch), setup.plan.config.rounds
    replica = Replica(setup.config, setup.plan.vocab_size, replace(setup.choices, accumulate=accumulate), mesh)
    made = setup.collectives(devices, accumulate)
    for silent in (False, True):  # compiles, and allocates what is allocated once
        replica.seconds(1, silent=silent)
    once = replica.seconds(2, silent=False)
    steps = max(2, min(setup.plan.config.steps or 2, math.ceil(SECONDS / once)))
    found: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        step = replica.seconds(steps, silent=False)
        if mesh is None:  # one process sends nothing
            found.append((step, step, 0.0))
            continue
        alone = sum(each.times * slowest(run_collective(each, mesh), 3, mesh) for each in made)
        found.append((step, replica.seconds(steps, silent=True), alone))
    del replica
    gc.collect()
    tokens = devices * accumulate * setup.choices.micro_batch * setup.config.model.block_size
    step, silent_step, alone = (statistics.median(column) for column in zip(*found, strict=True))
    sent = sum(each.sent for each in made)
    return Row(devices, batch, tokens, step, silent_step, alone, on_paper(made, lines), sent)


def time_collectives(setup: Setup, devices: int, mesh: DeviceMesh) -> tuple[Lines, list[list[str]]]:
    """Return the line of each kind and group that a step uses, and a row of a table for each measurement."""
    whole = sum(each.size * each.times for each in setup.collectives(devices, 1) if each.kind != "all-gather")
    largest = max(64 * LEAST_BYTES, min(MOST_BYTES, whole))
    lines, rows = {}, []
    for kind, group in dict.fromkeys((each.kind, each.group) for each in setup.collectives(devices, 1)):
        ranks = mesh.size((mesh.mesh_dim_names or ()).index(group))
        lengths = (LEAST_BYTES, math.sqrt(largest * LEAST_BYTES), largest)
        tensors, times = [Collective(kind, group, ranks, size, 1) for size in lengths], []
        for each in tensors:
            run = run_collective(each, mesh)
            run()
            repeats, tries = (1, 3) if each.size == largest else (5, 12)
            all_times = [slowest(run, repeats, mesh) for _ in range(tries * setup.plan.config.rounds)]
            times.append((each.size, min(all_times)))
        line = lines[kind, group] = fit(kind, ranks, times)
        about = [number(1e6 * line.alpha), number(line.beta / 1e9)]
        for each, (size, seconds) in zip(tensors, times, strict=True):
            figures = [number(size / 1e6), number(1e3 * seconds), number(1e3 * each.seconds(line))]
            rows.append([str(devices), kind, str(ranks), *figures, *about])
    return lines, rows
