"""prepare.engine=ray where there is no cluster: said by the name of the setting, and soon."""

import socket
import sys
import types

import pytest

from minigpt.data.preparing.ray_engine import encode_on_ray
from minigpt.data.tokenizer import build_tokenizer
from minigpt.faults import UserFault


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "error", "says"),
    [
        ("auto", ConnectionError("Could not find any running Ray instance"), r"=auto: .*\(Could not find any"),
        ("nonsense", ValueError("no address"), r"=nonsense: .*\(no address\)"),
        ("ray://127.0.0.1:{port}", AssertionError("asked Ray"), r"=ray://127.*\(.*refused\)"),
        ("127.0.0.1:{port}", AssertionError("asked Ray"), r"=127.*\(.*refused\)"),
        ("127.0.0.1:99999", AssertionError("asked Ray"), r"=127.*\(Port out of range"),
        ("", RuntimeError("no room in /dev/shm"), r"=null: .*\(no room"),
    ],
)
def test_a_cluster_that_is_not_there_is_named(monkeypatch, address, error, says):
    def init(**_):
        raise error

    monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(init=init))
    monkeypatch.setenv("RAY_ADDRESS", address.format(port=free_port()))
    with pytest.raises(UserFault, match=rf"ray\.address{says}.* Start one \(ray start --head\)"):
        list(encode_on_ray([], build_tokenizer("byte")))
