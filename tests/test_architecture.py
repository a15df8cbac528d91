"""Who may know whom: the walls of the house, read from the source with `ast`."""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "minigpt").rglob("*.py"))
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
MODULES = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in PACKAGE}

# Third-party package -> the only places in minigpt/ that may import it, where these are less than rooms (MAY_IMPORT);
# a trailing dot means the whole room.
HOMES = {
    "hydra": ("config.yaml_files",),
    "omegaconf": ("config.yaml_files",),
    "tiktoken": ("data.tokenizers.",),
    "tokenizers": ("data.tokenizers.",),
    "jinja2": ("data.chat.template",),
    "ray": ("data.preparing.engines",),
    "fsspec": ("data.sources.download",),
    "aiohttp": ("data.sources.download",),
    "matplotlib": ("report.", "serving.look", "sweep.results"),
    "wandb": ("rundir.loggers",),
    "lm_eval": ("evaluation.lm_eval",),
    "unittest": (),  # nothing shipped patches the product
}

# Room (a package of minigpt/, or a file beside the packages) -> the rooms and third-party packages that it may import.
# Every room has its line, and the line holds nothing that the room does not import.
MAY_IMPORT = {
    "__init__": "",
    "__main__": "cli",
    "api": "checkpoint config data evaluation faults ranks rundir sampling stages training",
    "attention": "numpy torch",
    "benchmark": "config data faults files machine model rundir sampling screen training numpy torch",
    "checkpoint": "config data faults files formats model safetensors torch",
    "children": "invocation",
    "cli": "__init__ benchmark config data faults invocation ranks redact report sweep",
    "config": "faults files imported_models invocation redact hydra omegaconf yaml",
    "data": "attention config faults files machine redact screen seeds "
    "aiohttp charset_normalizer fsspec jinja2 numpy ray tiktoken tokenizers torch",
    "demo": "config faults invocation sampling stages training",
    "evaluation": "checkpoint config data faults files formats machine model report sampling screen "
    "lm_eval numpy torch",
    "export": "__init__ checkpoint config data faults formats model report screen safetensors torch",
    "faults": "invocation",
    "files": "faults",
    "imported_models": "faults files redact huggingface_hub torch",
    "formats": "config data faults files imported_models model numpy safetensors torch",
    "invocation": "",
    "machine": "config faults model torch",
    "model": "attention config numpy torch",
    "ranks": "children config faults files invocation redact torch",
    "redact": "",
    "report": "checkpoint config data faults files machine model rundir screen matplotlib numpy yaml",
    "rundir": "__init__ config faults files invocation redact screen torch wandb yaml",
    "sampling": "checkpoint config data faults files machine model screen seeds torch",
    "screen": "faults tqdm",
    "seeds": "numpy",
    "serving": "attention checkpoint config data evaluation faults files sampling screen "
    "fastapi matplotlib numpy pydantic starlette torch uvicorn",
    "sizing": "config data faults files invocation machine model ranks redact report screen numpy",
    "stages": "config data evaluation faults invocation",
    "sweep": "children config data faults files invocation machine ranks redact rundir screen "
    "matplotlib numpy optuna torch",
    "training": "__init__ attention checkpoint config data evaluation faults formats invocation "
    "machine model ranks redact report rundir sampling screen seeds sizing lightning numpy torch",
    "verify": "checkpoint children config faults ranks rundir screen",
}

# File -> all it may import, where a file is held to less than its room.
FILES_MAY_IMPORT = {
    "config.setting": "",
    "config.schema": "config",
    "config.convert": "config redact",
    "config.check": "config faults invocation",
    "config.rules": "config",
    "config.run_names": "config redact",
    "config.command_line": "config faults invocation redact",
    "attention.functional": "torch attention",
    "model.gpt": "torch attention config model",
}


def imports(file: Path) -> Iterator[str]:
    """Dotted names of everything a file imports at run time, inside functions too."""
    tree = ast.parse(file.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write imports in full, not relative"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in MODULES else str(node.module)


@functools.cache
def graph() -> dict[str, set[str]]:
    return {module: set(imports(file)) for module, file in MODULES.items()}


def is_in(module: str, place: str) -> bool:
    """Whether minigpt.data.module is in "data.module", "data." or "minigpt.data."."""
    module, place = module.removeprefix("minigpt."), place.removeprefix("minigpt.")
    return module == place or (place.endswith(".") and (module + ".").startswith(place))


def test_the_walk_sees_the_house():
    assert len(MODULES) > 20
    assert "minigpt.redact" in graph()["minigpt.config.convert"]
    assert "hydra" in {name.partition(".")[0] for name in graph()["minigpt.config.yaml_files"]}


@pytest.mark.parametrize("package", HOMES)
def test_third_party_packages_stay_in_their_rooms(package):
    users = [module for module, names in graph().items() if package in {name.partition(".")[0] for name in names}]
    strays = [module for module in users if not any(is_in(module, home) for home in HOMES[package])]
    assert strays == []


def room_of(module: str) -> str:
    """The room of one of our modules: the package of minigpt/ that holds it, or itself where it stands beside those."""
    return "__init__" if module == "minigpt" else module.split(".")[1]


def known_to(module: str) -> set[str]:
    """The rooms and third-party packages that a module imports."""
    tops = {name if name.startswith("minigpt") else name.partition(".")[0] for name in graph()[module]}
    return {room_of(top) if top.startswith("minigpt") else top for top in tops - sys.stdlib_module_names}


@functools.cache
def rooms() -> dict[str, set[str]]:
    known: dict[str, set[str]] = {room_of(module): set() for module in MODULES}
    for module in MODULES:
        known[room_of(module)] |= known_to(module) - {room_of(module)}
    return known


def test_every_room_states_what_it_may_import():
    stated = {room: set(line.split()) for room, line in MAY_IMPORT.items()}
    assert stated.keys() == rooms().keys()
    assert {room: sorted(known - stated[room]) for room, known in rooms().items() if known - stated[room]} == {}
    assert {room: sorted(stated[room] - known) for room, known in rooms().items() if stated[room] - known} == {}


@pytest.mark.parametrize("file", FILES_MAY_IMPORT)
def test_files_that_are_held_to_less_than_their_room(file):
    assert known_to(f"minigpt.{file}") <= set(FILES_MAY_IMPORT[file].split())


def test_no_room_imports_one_that_imports_it():
    """Rooms have an order: no cycle among packages, however long."""
    TopologicalSorter(rooms()).prepare()  # raises where there is one, and names it


def test_the_sampling_loop_does_not_know_the_model():
    """It works on any callable (tokens, cache) -> logits; only what stands around it turns a GPT into one."""
    reached, queue = set(), ["minigpt.sampling.generate"]
    while queue:
        module = queue.pop()
        reached.add(module)
        queue += graph()[module] & MODULES.keys() - reached
    assert "minigpt.sampling.filters" in reached
    assert "minigpt.model.gpt" not in reached


def test_no_cycles():
    TopologicalSorter({module: known - {module} for module, known in graph().items()}).prepare()


def test_no_drawer_for_odds_and_ends():
    names = {file.stem for file in PACKAGE}
    assert not names & {"utils", "util", "helpers", "helper", "common", "base", "misc"}


def test_scripts_are_thin():
    """Each hands over to minigpt/cli.py; setup_env.py is the only one that does work, before there is a minigpt."""
    thin = [file for file in SCRIPTS if file.stem != "setup_env"]
    assert len(thin) == 4
    for file in thin:
        assert len(file.read_text().splitlines()) <= 12, file


FORBIDDEN_CALLS = {
    "eval": "runs text as code",
    "exec": "runs text as code",
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "torch.load": "reads pickles; use safetensors",
    "torch.save": "writes pickles; use safetensors",
    "yaml.load": "builds any object; use yaml.safe_load",
    "yaml.unsafe_load": "builds any object; use yaml.safe_load",
    "hydra.main": "exits 1 and creates folders; use minigpt.config.compose",
    "hydra.utils.instantiate": "calls what a file names",
    "instantiate": "calls what a file names",
}
FORBIDDEN_KEYWORDS = {("weights_only", False), ("shell", True), ("allow_pickle", True)}
UNSAFE_LOADERS = {f"{c}{name}Loader" for c in ("", "C") for name in ("", "Full", "Unsafe")}  # of PyYAML
FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "hydra.utils"}
# The only exceptions: nanoGPT's files. torch.load must have weights_only=True, the unpickler look nothing up.
ALLOWED = {
    "minigpt/imported_models.py": ["torch.load(): " + FORBIDDEN_CALLS["torch.load"]],
    "minigpt/formats/nanogpt.py": ["pickle"],
}


def offences(source: str) -> list[str]:
    """What in this source could run code that a file or a user names."""
    offending = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            offending += [f"{name}(): {FORBIDDEN_CALLS[name]}"] if name in FORBIDDEN_CALLS else []
            for keyword in node.keywords:
                if isinstance(keyword.value, ast.Constant) and (keyword.arg, keyword.value.value) in FORBIDDEN_KEYWORDS:
                    offending.append(ast.unparse(keyword))
        elif isinstance(node, ast.Import):
            offending += [alias.name for alias in node.names if alias.name in FORBIDDEN_IMPORTS]
        elif isinstance(node, ast.ImportFrom) and node.module in FORBIDDEN_IMPORTS:
            offending.append(node.module or "")
        elif isinstance(node, ast.Constant) and node.value == "_target_":
            offending.append("_target_")
        named = (getattr(node, field, None) for field in ("attr", "value", "name"))  # x.NAME, "NAME", import NAME
        offending += [name for name in named if isinstance(name, str) and name in UNSAFE_LOADERS]
    return offending


def test_nothing_runs_what_a_file_names():
    by_file = {str(file.relative_to(ROOT)): offences(file.read_text()) for file in [*PACKAGE, *SCRIPTS]}
    assert {file: wrong for file, wrong in by_file.items() if wrong} == ALLOWED


def test_torch_load_reads_weights_only_and_the_unpickler_looks_nothing_up():
    tree = ast.parse((ROOT / "minigpt" / "imported_models.py").read_text())
    (call,) = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"]
    assert ast.literal_eval({word.arg: word.value for word in call.keywords}["weights_only"]) is True
    tree = ast.parse((ROOT / "minigpt" / "formats" / "nanogpt.py").read_text())
    used = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {name for name in used if name.startswith("pickle.")} == {"pickle.Unpickler", "pickle.UnpicklingError"}
    (finder,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "find_class"]
    assert [type(line) for line in finder.body] == [ast.Raise]


def test_the_guard_above_sees_each_offence():
    bad = """
import pickle
from hydra.utils import instantiate
torch.load(path, weights_only=False)
subprocess.run(text, shell=True)
yaml.load(text)
eval(text)
config["_target_"]
YAML_LOADER = getattr(yaml, "CLoader", yaml.UnsafeLoader)
from yaml import FullLoader
"""
    assert len(offences(bad)) == 11
    assert offences("model.eval(); yaml.CSafeLoader(x); run(a, shell=False)") == []


def test_the_picture_of_the_house_is_true():
    """It names every room and every file beside the rooms, and no file that is not there."""
    picture = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    rooms = {path.parent.name for path in (ROOT / "minigpt").rglob("__init__.py")} - {"minigpt"}
    top = {path.stem for path in (ROOT / "minigpt").glob("*.py")} - {"__init__"}
    assert sorted((rooms | top) - set(re.findall(r"\w+", picture))) == []
    existing = {file.name for top in ("minigpt", "scripts", "docs", "tests") for file in (ROOT / top).rglob("*.py")}
    assert sorted(set(re.findall(r"\b\w+\.py\b", picture)) - existing) == []
