"""How processes find each other: who is missing, which address, and what each of them gets."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.ports import free_port

import purejaxppo.commands.train as train_command
from purejaxppo.parallel import meeting
from purejaxppo.parallel.processes import Place

pytestmark = [
    pytest.mark.toy,
    pytest.mark.usefixtures("config_file"),
    pytest.mark.xdist_group("processes"),
]


@pytest.mark.parametrize(
    ("index", "said"),
    [(0, "of 2 processes these have not come to port {}: 1"), (1, "cannot reach process 0 at")],
)
def test_processes_that_do_not_come_are_waited_for_so_long_and_named(index, said, capsys):
    port = free_port()
    place = f"--coordinator 127.0.0.1:{port} --num_processes 2 --process_id {index}".split()
    started = time.monotonic()
    code = train_command.main(["--config", "small.yaml", *place, "--wait_seconds", "0.5"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said.format(port) in err
    assert time.monotonic() - started < 5


def test_process_0_listens_at_the_address_that_was_asked_for_alone(monkeypatch):
    place = Place(0, 2, f"127.0.0.1:{free_port()}")
    make, at = socket.create_server, []

    def spy(*args, **kwargs):
        server = make(*args, **kwargs)
        at.append(server.getsockname()[0])
        return server

    monkeypatch.setattr(meeting.socket, "create_server", spy)
    with pytest.raises(ValueError, match="these have not come"):
        meeting.meet(place, "", "", 0.05)
    assert at == ["127.0.0.1"]
    assert meeting._bind_address(place) == place.coordinator


@pytest.mark.parametrize(
    ("names", "own"),
    [
        (["127.0.0.1"], "127.0.0.1"),
        (["::1", "127.0.0.1"], "127.0.0.1"),  # an address that cannot be bound is passed over
        (["127.0.1.1"], ""),  # Debian's name for itself, which others do not know
        (["192.0.2.7"], ""),  # of somebody else
    ],
)
def test_a_host_means_the_first_address_that_is_the_machines_own(names, own, monkeypatch):
    stream = socket.SOCK_STREAM
    found = [(socket.AF_INET, stream, 6, "", (name, 0)) for name in names]
    monkeypatch.setattr(meeting.socket, "getaddrinfo", lambda *_, **__: found)
    asked = "localhost" if own else "node1"
    assert meeting.own_address(asked) == own
    where = meeting._bind_address(Place(0, 2, f"{asked}:9"))
    assert where == (f"{own}:9" if own else None)


def test_an_unknown_host_is_named_at_once(capsys):
    place = ["--coordinator", "no.such.host.invalid:9", "--num_processes", "2", "--process_id", "1"]
    assert train_command.main(["--config", "small.yaml", *place]) == 2
    assert "no host no.such.host.invalid is known" in capsys.readouterr().err


def test_another_command_is_refused_and_the_process_named(monkeypatch, capsys):
    port, listens, meet = free_port(), threading.Event(), meeting.meet

    def met(*args):
        listens.set()
        return meet(*args)

    def come(index):
        place = f"--coordinator 127.0.0.1:{port} --num_processes 2 --process_id {index}".split()
        return train_command.main(["--config", "small.yaml", *place, "--seed", str(index)])

    monkeypatch.setattr(meeting, "meet", met)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(come, 0)
        assert listens.wait(20)  # one after the other through what reads flags
        second = pool.submit(come, 1)
        assert first.result() == second.result() == 2
    said = "process 1 was given another command or config file than process 0"
    assert capsys.readouterr() == ("", f"error: {said}\n")


def member(host="a", cores=(0, 1, 2, 3), gpus=None):
    return {"host": host, "cores": list(cores), "gpus": gpus}


def test_cores_are_shared_where_they_are_shared_and_all_get_as_many():
    assert meeting.share_of_cores([member(), member("b")]) == 4
    assert meeting.share_of_cores([member(), member()]) == 2
    assert meeting.share_of_cores([member(cores=[0, 1]), member(cores=[2, 3])]) == 2
    assert meeting.share_of_cores([member(cores=[0])] * 3) == 1
    assert meeting.share_of_cores([member(), member(), member("b")]) == 2


def test_processes_on_one_machine_take_one_gpu_each_unless_they_were_given_their_own():
    assert meeting.own_gpus([member(), member("b")], 1) == []
    assert meeting.own_gpus([member(), member("b"), member("b")], 2) == [1]
    assert meeting.own_gpus([member(gpus="0"), member(gpus="0")], 1) == []
    assert meeting.own_gpus([member(gpus="0"), member(gpus="1")], 1) == []
    assert meeting.own_gpus([member(gpus="4,5"), member(gpus="4,5")], 1) == [1]
