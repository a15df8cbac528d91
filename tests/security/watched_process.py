"""A process that is watched while it trains and samples: arguments OWN FOREIGN SETTINGS.

First, from the first import to the report, it trains on data=stdlib and samples, without wandb; then it uses the run in
OWN and the stranger's in FOREIGN. Last it prints NETWORK and each event of a network that an audit hook has seen, then
SEEN and each event that no use of a stranger's run may cause.
"""

# ruff: noqa: E402, for the hook is there before anything of ours is imported
import os
import sys

connections = []


def network_hook(event, arguments):
    if event.startswith(("socket.", "urllib.", "http.", "ftplib.", "smtplib.")) and event != "socket.gethostname":
        connections.append(f"{event} {arguments!r}"[:200])


class NoWandb:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "wandb":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.addaudithook(network_hook)
sys.meta_path.insert(0, NoWandb())
from pathlib import Path

import minigpt.data.sources.corpus
from minigpt.config.compose import compose
from minigpt.config.schema import SampleConfig
from minigpt.sampling.sample import sample
from minigpt.training.run import train

own, foreign, arguments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]

minigpt.data.sources.corpus._STDLIB = ["json", "wave", "email"]
bundled = [each for each in arguments if each != "data=text"]
assert train(compose("train", [*bundled, "run.dir=run", "validate.every_steps=0"])) == 0
assert sample(SampleConfig(checkpoint="run", prompt=["import"], max_new_tokens=9, device="cpu")) == 0
assert not [name for name in sys.modules if name.partition(".")[0] == "wandb"]


def use(place):
    where = [f"data.source={place}/text.txt", f"data.dir={place}/data", f"run.dir={place}/run"]
    for which in ("best", "latest"):
        sample(SampleConfig(checkpoint=f"{place}/run", which=which, prompt=["line"], max_new_tokens=12, device="cpu"))
    stage[0] = "training"
    assert train(compose("train", [*arguments, *where, "trainer.max_steps=8"])) == 0


stage = ["sampling"]
use(own)  # so that everything is imported and cached that our own code wants
seen = []
READS = {"open", "os.listdir", "os.scandir", "os.walk", "glob.glob", "mmap.__new__", "pathlib.Path.glob",
         "pathlib.Path.rglob"}  # fmt: skip
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.utime", "shutil.rmtree",
          "tempfile.mkstemp", "fcntl.flock", "fcntl.fcntl"}  # fmt: skip
QUIET = {"object.__getattr__", "object.__setattr__", "sys._getframe", "gc.get_referrers", "builtins.id", "time.sleep",
         "sys.excepthook", "sys.unraisablehook", "_thread.start_new_thread", "signal.pthread_kill", "array.__new__",
         "ctypes.addressof"}  # an address of ours for our own compiled step; loading, looking up is seen  # fmt: skip


def inside(path, folder=-1):
    if isinstance(path, int):
        return True
    if folder >= 0:  # shutil.rmtree names what it removes by the open folder that it lies in
        path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)
    path = os.path.realpath(os.fsdecode(path))
    return path.startswith((os.path.realpath(foreign / "run") + os.sep, os.path.realpath(foreign / "run/checkpoints")))


def hook(event, arguments):
    if done[0] or event in QUIET:
        return
    if event == "open":
        path, _, flags = arguments
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        if not writes or (stage[0] == "training" and inside(path)) or path == os.devnull:
            return
    elif event in READS:
        return
    elif event in WRITES and stage[0] == "training":
        paths = arguments if event == "os.remove" else arguments[:1]
        if event.startswith(("tempfile", "fcntl")) or inside(*paths):
            return
    seen.append(f"{stage[0]}: {event} {arguments!r}"[:300])


done = [False]
stage[0] = "sampling"
sys.addaudithook(hook)
use(foreign)
done[0] = True
print("\n".join(["NETWORK", *connections, "SEEN", *seen]))
