"""The YAML files under configs/ and in a user's own folder, composed by Hydra.

The only file that knows Hydra. No resolver is evaluated, and nothing that a file names is called.
"""

import copy
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from minigpt.config.convert import settings, to_dict
from minigpt.invocation import PACKAGE

# Inside the installed package, or beside it in a checkout.
CONFIGS = PACKAGE / "configs" if (PACKAGE / "configs").is_dir() else PACKAGE.parent / "configs"


def find_groups(cls: type, folder: Path | None = None) -> dict[str, dict[str, Path]]:
    """Return group -> choice -> file of configs/ and of a user's own folder; configs/ wins where both have a name."""
    groups: dict[str, dict[str, Path]] = {}
    for top in (CONFIGS, folder) if folder else (CONFIGS,):
        for group in dict.fromkeys(key.rpartition(".")[0] or key for key in settings(cls)):
            for file in sorted((top / group).rglob("*.yaml"), key=lambda file: file.with_suffix("")):
                choice = file.relative_to(top / group).with_suffix("").as_posix()
                groups.setdefault(group, {}).setdefault(choice, file)
    return groups


find_shipped_groups = functools.cache(find_groups)  # a user's folder may change between two calls


def compose_files(command: str, choices: Mapping[str, str], folder: Path | None) -> dict[str, Any]:
    """Return what configs/COMMAND.yaml and the chosen files, ours or another folder's, hold together, unresolved.

    Raises:
        ValueError: they don't compose.
    """
    compose = _composed if folder else _kept  # a user's files may be edited between two calls
    return copy.deepcopy(compose(command, tuple(choices.items()), folder))


def _composed(command: str, choices: tuple[tuple[str, str], ...], folder: Path | None) -> dict[str, Any]:
    import hydra  # here, so that a command without files does not wait for it
    from omegaconf import OmegaConf

    unused = ("output", "launcher", "sweeper", "help", "hydra_help", "hydra_logging", "job_logging", "env")
    overrides = [f"{group}={_quoted(choice)}" for group, choice in choices] + [f"~hydra/{name}" for name in unused]
    overrides += [f"hydra.searchpath=[{_quoted(f'file://{folder}')}]"] if folder else []
    try:
        with hydra.initialize_config_dir(str(CONFIGS), version_base="1.3"):
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
