"""The files that a config is made of: YAML under configs/ and in a user's own folder, and a checkpoint's config.

Hydra composes them. No resolver is ever evaluated, and nothing that a file names is called (foreign_folder.py).
"""

import copy
import functools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import minigpt
from minigpt.config.architecture import foreign_settings, tokenizer_settings
from minigpt.config.convert import fitted, flatten, sections, settings, to_dict
from minigpt.config.hub import local_path
from minigpt.config.plain_yaml import MAX_CHARACTERS
from minigpt.config.setting import Setting
from minigpt.faults import UserFault
from minigpt.files import read_plain

MAX_FILES = 10_000  # in the folder of a group, of any kind


@functools.cache
def config_folder() -> Path:
    """Return configs/: it is inside the installed package, or beside it in a checkout."""
    package = Path(minigpt.__file__).resolve().parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def find_groups(cls: type, *folders: Path) -> dict[str, dict[str, Path]]:
    """Return group -> choice -> file for some folders; by default for ours. The first file of a name counts.

    Raises:
        UserFault: a folder of a group is none: it holds more than MAX_FILES files.
    """
    found: dict[str, dict[str, Path]] = {}
    for folder in folders or [config_folder()]:
        choices_of = _kept_choices if folder == config_folder() else _choices  # another's files may come and go
        for group in [*sections(cls), *(["experiment"] if "experiment" in settings(cls) else [])]:
            for choice, file in choices_of(folder / group).items():
                found.setdefault(group, {}).setdefault(choice, file)
    return found


def _choices(folder: Path) -> dict[str, Path]:
    files = sorted(_yaml_files(folder), key=lambda file: file.with_suffix(""))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


_kept_choices = functools.cache(_choices)


def _yaml_files(folder: Path) -> Iterator[Path]:
    seen = 0
    for place, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > MAX_FILES:
            wrong = f"{folder} is no group of config files: it holds more than {MAX_FILES:,} files"
            raise UserFault(f"{wrong}. Give --config-dir a folder for config files alone.")
        yield from (Path(place, name) for name in files if name.endswith(".yaml"))


def taken_names(cls: type, folder: Path) -> list[str]:
    """Return a sentence for each file of another folder that has the name of one of ours."""
    ours = find_groups(cls)
    return [
        f"{file} has the name of minigpt's own {group}={choice}. Rename it."
        for group, choices in find_groups(cls, folder).items()
        for choice, file in choices.items()
        if choice in ours.get(group, {})
    ]


def compose_files(command: str, choices: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    """Return what configs/COMMAND.yaml and the chosen files, ours or another folder's, hold together, unresolved.

    Raises:
        ValueError: they don't compose.
    """
    if folder is not None:  # its files may be edited between two calls
        return _composed(command, tuple(choices.items()), folder, config_folder())
    return copy.deepcopy(_kept(command, tuple(choices.items()), None, config_folder()))


def _composed(command: str, choices: tuple[tuple[str, str], ...], folder: Path | None, ours: Path) -> dict[str, Any]:
    import hydra  # here, so that a command without files does not wait for it
    from hydra.core.plugins import Plugins
    from omegaconf import OmegaConf

    from minigpt.config.foreign_folder import ForeignFolder

    Plugins.instance().register(ForeignFolder)
    overrides = [f"{group}={_quoted(choice)}" for group, choice in choices]
    overrides += [f"hydra.searchpath=[{_quoted(f'{ForeignFolder.scheme()}://{folder}')}]"] if folder else []
    try:
        with hydra.initialize_config_dir(str(ours), version_base="1.3"):
            composed: Any = OmegaConf.to_container(hydra.compose(command, overrides=overrides), resolve=False)
    except Exception as error:  # Hydra raises KeyError, TypeError and AssertionError, too, for a file it doesn't expect
        raise ValueError(str(error) or repr(error.__cause__ or error)) from error
    return {str(key): value for key, value in composed.items()}


_kept = functools.cache(_composed)  # Hydra takes a quarter of a second


def _quoted(text: str) -> str:
    """Return a text quoted so that Hydra's grammar reads it back unchanged."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def to_yaml(config: Any) -> str:
    """Return a config as YAML, with the names that users type."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def inherited_settings(cls: type, source: str) -> dict[str, Any]:
    """Return the settings of a run's or checkpoint's model and tokenizer that its weights depend on.

    Args:
        cls: the config class that has them. A setting that the checkpoint lacks had its default.
        source: as for `init.from`. If nothing can be read there, {}; the training says later what is wrong.

    Raises:
        UserFault: it is another program's model, of an architecture that minigpt can't compute.
    """
    path = local_path(source)
    known = [each for key, each in settings(cls).items() if key.startswith(("model.", "tokenizer."))]
    fixed = [each for each in known if each.role == "weights"]
    foreign = foreign_settings(path)
    if foreign is not None:
        stored = foreign[0] | tokenizer_settings(path)
        return _fitting([each for each in fixed if each.key.startswith("model.") or each.key in stored], stored)
    places = ("config.json", "step-*[0-9]/config.json", "checkpoints/step-*[0-9]/config.json")
    try:
        newest = [file for place in places for file in sorted(path.glob(place))][-1]
        stored = flatten(json.loads(read_plain(newest, MAX_CHARACTERS, links=False)))
    except (OSError, ValueError, RecursionError, AttributeError, IndexError):
        return {}
    return _fitting(fixed, stored)


def _fitting(fixed: Iterable[Setting], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored values, or the defaults, of these settings; {} if any value has the wrong type."""
    found = {each.key: fitted(each.kind, stored.get(each.key, each.default)) for each in fixed}
    return {} if any(wrong for _, wrong in found.values()) else {key: value for key, (value, _) in found.items()}
