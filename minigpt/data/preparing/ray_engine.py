"""prepare.engine=ray: units of work are encoded by a Ray cluster. Its nodes need minigpt, but none of the files."""

import functools
import json
import os
import socket
from collections.abc import Generator, Iterable
from pathlib import Path
from urllib.parse import urlsplit

from minigpt.data.preparing.units import Job
from minigpt.data.preparing.workers import MAX_DEATHS, answer, result_of
from minigpt.data.tokenizer import Tokenizer, load_tokenizer
from minigpt.faults import UserFault

CONNECT_SECONDS = 5.0


def encode_on_ray(jobs: Iterable[Job], tokenizer: Tokenizer) -> Generator[Job, None, None]:
    """Yield the results of frames as they come. If a node dies, others encode its units.

    Ray finds its cluster as it always does: RAY_ADDRESS, or else a cluster of this machine's cores is started.

    Args:
        jobs: files and frames; at most two more than the cluster has cores are in memory.
        tokenizer: to encode with.

    Raises:
        UserFault: as encoding does; or there is no cluster.
    """
    import ray

    _connect(os.environ.get("RAY_ADDRESS", ""))
    encode = ray.remote(max_retries=MAX_DEATHS)(_encode)
    vocabulary, waiting = ray.put(json.dumps(tokenizer.to_json())), dict[ray.ObjectRef, Path]()

    def finished() -> Generator[Job, None, None]:
        (ready,), _ = ray.wait(list(waiting))
        yield waiting.pop(ready), result_of(ray.get(ready))

    try:
        for path, frame in jobs:
            waiting[encode.remote(vocabulary, frame)] = path
            if len(waiting) >= ray.cluster_resources().get("CPU", 1) + 2:
                yield from finished()
        while waiting:
            yield from finished()
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    """Join the cluster at an address; if the address is empty, find or start one.

    Raises:
        UserFault: there is no cluster. (Ray itself would ask an address that does not answer without end.)
    """
    import ray

    try:
        where = urlsplit(address if "//" in address else f"//{address}")
        if where.hostname and where.port:
            socket.create_connection((where.hostname, where.port), CONNECT_SECONDS).close()
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="warning")
    except (
        Exception
    ) as error:  # ConnectionError, ValueError, ImportError (ray:// without ray[client]), RuntimeError ...
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        remedy = "Start one (ray start --head), name its address, or leave ray.address out to start one here"
        raise UserFault(f"ray.address={address or 'null'}: no Ray cluster to work with ({reason}). {remedy}") from None


def _encode(vocabulary: str, frame: bytes) -> bytes:
    return answer(frame, _tokenizer(vocabulary))


@functools.cache
def _tokenizer(vocabulary: str) -> Tokenizer:
    return load_tokenizer(json.loads(vocabulary))
