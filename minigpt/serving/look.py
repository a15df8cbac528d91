"""minigpt look: the tokens and the attention of a text as one page, to keep and to send."""

import os
from pathlib import Path

from minigpt.checkpoint.load import load_checkpoint
from minigpt.config.commands import LookConfig
from minigpt.faults import StorageFailure
from minigpt.files import write_file
from minigpt.serving.models import name_of
from minigpt.serving.page_of import AT_REST, page_of
from minigpt.serving.views import look as look_at


def look(config: LookConfig) -> Path:
    """Write the page, and return its path.

    Raises:
        UserFault: no such checkpoint, or a text that its tokenizer can't encode.
        StorageFailure: the file can't be written.
    """
    assert config.checkpoint is not None, "config/rules asks for it"
    loaded = load_checkpoint(config.checkpoint, config.which)
    found = look_at(name_of(loaded.path), loaded, config.text)
    if found["cut"]:
        print(f"The text is longer than a picture: its first {len(found['tokens'])} tokens are shown.")
    path = Path(os.path.expanduser(config.out))
    try:
        write_file(path, page_of(AT_REST, title=f"{found['name']} reads", data=found)[0])
    except OSError as error:
        raise StorageFailure(f"out={path} can't be written: {error.strerror or error}. Give another file") from error
    return path
