"""The YAML files under configs/ and in a folder of the user's: found, checked and composed by Hydra.

No resolver is ever evaluated, and nothing that a file names is called.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import minigpt
from minigpt.config.convert import sections, settings
from minigpt.config.plain_yaml import plain_yaml


def config_folder() -> Path:
    """configs/: inside the installed package, or beside it in a checkout."""
    package = Path(minigpt.__file__).resolve().parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def find_groups(cls: type, config_dir: str | None = None) -> dict[str, dict[str, Path]]:
    """Group -> choice -> file, of our configs and the user's folder."""
    found: dict[str, dict[str, Path]] = {}
    for folder in [config_folder(), *([Path(config_dir)] if config_dir else [])]:
        for group, choice, file in _files(cls, folder):
            found.setdefault(group, {}).setdefault(choice, file)
    return found


def _files(cls: type, folder: Path) -> Iterator[tuple[str, str, Path]]:
    for group in [*sections(cls), *(["experiment"] if "experiment" in settings(cls) else [])]:
        for file in sorted((folder / group).rglob("*.yaml"), key=lambda file: file.with_suffix("")):
            yield group, file.relative_to(folder / group).with_suffix("").as_posix(), file


def unfit_files(cls: type, config_dir: str) -> list[str]:
    """A sentence for each file of a folder, perhaps a stranger's, that Hydra would read for ever or evaluate."""
    ours = find_groups(cls)
    found = []
    for group, choice, file in _files(cls, Path(config_dir)):
        if choice in ours.get(group, {}):
            found.append(f"{file} has the name of minigpt's own {group}={choice}. Rename it.")
        try:
            content = plain_yaml(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue  # Hydra says what is wrong with it, if it is chosen at all
        except ValueError as error:
            found.append(f"{file} can't be used: {error}.")
            continue
        if isinstance(content, dict) and "${" in str(content.get("defaults")):
            found.append(f"{file} has ${{...}} in its defaults, which is not evaluated. Write the value itself.")
    return found


def compose_files(command: str, choices: Mapping[str, str], config_dir: str | None) -> dict[str, Any]:
    """What configs/COMMAND.yaml and the chosen files hold together, unresolved.

    Raises:
        ValueError: they don't compose.
    """
    import hydra  # here, so that a command without files does not wait for it
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides = [f"{group}={_quoted(choice)}" for group, choice in choices.items()]
    if config_dir:
        overrides.append(f"hydra.searchpath=[{_quoted('file://' + config_dir)}]")
    try:
        with hydra.initialize_config_dir(str(config_folder()), version_base="1.3"):
            composed: Any = OmegaConf.to_container(hydra.compose(command, overrides=overrides), resolve=False)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, RecursionError, OSError) as error:
        raise ValueError(str(error)) from error
    return {str(key): value for key, value in composed.items()}


def _quoted(text: str) -> str:
    """A text as Hydra's grammar reads it back unchanged."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
