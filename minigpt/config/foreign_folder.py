"""The folder of --config-dir, as Hydra reads it: each file is checked when it is read, from the same text.

The folder may be a stranger's. Hydra looks up ${oc.env:NAME} while it composes, and a defaults list leads it to any
file below the folder, through links too, or on the disk. So nothing is evaluated, and no path leaves the folder.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minigpt.config.plain_yaml import MAX_CHARACTERS, plain_yaml
from minigpt.files import read_plain

MAX_COST = 2 * MAX_CHARACTERS  # of one composition; each file counts twice at each of its places
NAME_COST = 300  # characters that take Hydra as long as one more name in a defaults list


class _Header(dict[str, str | None]):
    """The header of a file. Hydra asks for it at each place of the file in the composition, and once more."""

    folder: "ForeignFolder"
    cost: int

    def __getitem__(self, key: str) -> str | None:
        self.folder.cost += self.cost
        if self.folder.cost > MAX_COST:
            raise HydraException(
                f"{self.folder.path}: the chosen files have more than {MAX_CHARACTERS:,} characters together, "
                f"or more than {MAX_CHARACTERS // NAME_COST} names in their defaults"
            )
        return super().__getitem__(key)


class ForeignFolder(ConfigSource):  # type: ignore[misc]  # Hydra has no types
    """What hydra.searchpath calls foreign://FOLDER."""

    cost = 0

    @staticmethod
    def scheme() -> str:
        """Return what stands before :// in hydra.searchpath."""
        return "foreign"

    def available(self) -> bool:
        """Return whether the folder is there."""
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        """Return whether a folder of this name is there."""
        return (Path(self.path) / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether a file of this name is there, be it a pipe: reading it gives the reason."""
        file = self._file(config_path)
        return file.exists() and not file.is_dir()

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the names of the files in a group, which Hydra shows in an error message."""
        return sorted(file.stem for file in (Path(self.path) / config_path).glob("*.yaml"))

    def load_config(self, config_path: str) -> ConfigResult:
        """Return the content of a file.

        Raises:
            HydraException: it can't be read, or isn't plain values.
        """
        file = self._file(config_path)
        try:
            text = read_plain(file, 4 * MAX_CHARACTERS).decode("utf-8-sig")
            content = plain_yaml(text, yaml.SafeLoader)
            if not isinstance(content, dict | None):  # OmegaConf reads the value of a text as YAML again
                raise ValueError("it holds no settings, which are written as NAME: VALUE")
            config, header = OmegaConf.load(io.StringIO(text)), _Header(self._get_header_dict(text[:512]))
            names = _checked_names(OmegaConf.to_container(config, resolve=False))
            header.folder, header.cost = self, len(text) + NAME_COST * (1 + len(names))
        except (OSError, ValueError, RecursionError, yaml.YAMLError, OmegaConfBaseException) as error:
            raise HydraException(f"{file} can't be used: {error}.") from error
        return ConfigResult(config=config, path=f"{self.scheme()}://{self.path}", provider=self.provider, header=header)

    def _file(self, config_path: str) -> Path:
        return Path(self.path) / (config_path if config_path.endswith(".yaml") else f"{config_path}.yaml")


def _checked_names(content: Any) -> list[str]:
    """Return the paths in the defaults of a file.

    Raises:
        ValueError: one leads out of the folder, or something would have to be evaluated.
    """
    for key, text in _texts(content):
        if "${" in text:
            raise ValueError(f"it says {key}: {text}, but ${{...}} is not evaluated. Write the value itself")
    names = list(_named(content.get("defaults")))
    for name in names:
        if {"", ".."} & set(name.removeprefix("/").split("/")):  # //x is /x on the disk
            raise ValueError(f"{name!r} in its defaults leads out of the folder. Name a file as GROUP/NAME")
    return names


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a value, keys included, after the key under which it stands."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield key, str(name)
            yield from _texts(inner, f"{key}.{name}".removeprefix("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
    else:
        yield key, str(value)


def _named(defaults: Any) -> Iterator[str]:
    """Yield the paths in a defaults list, without packages and the words `override` and `optional`."""
    for entry in defaults if isinstance(defaults, list) else []:
        if isinstance(entry, dict):
            yield from (str(key).partition("@")[0].split(" ")[-1] for key in entry)
            yield from (text for value in entry.values() for _, text in _texts(value))
        else:
            yield str(entry).partition("@")[0]
