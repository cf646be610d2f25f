"""Actors in this process, at a real broker: in a thread, and on a loop."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import omnibus
from omnibus.embedded import interpreter, mesh_environment
from omnibus.launch.local import LocalLauncher
from tests.actors.embedjobs import Later, Plain, Stopping, Unready
from tests.support.events import aeventually, eventually


@contextmanager
def broker() -> Iterator[tuple[str, int]]:
    """Run a broker; give its address and its pid."""
    with tempfile.TemporaryDirectory(prefix="ob", dir="/tmp") as folder, LocalLauncher() as launcher:
        address = f"ipc://{folder}/b"
        command = [*interpreter(), "omnibus.brokers", "--bind", address, "--owner", str(os.getpid())]
        handle = launcher.submit(command, name="broker", env=mesh_environment(), ready=True)
        launcher.wait_ready(handle, 20)
        yield address, launcher.pid(handle)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with broker() as (found, _):
        yield found


@pytest.fixture(scope="module")
def bus(address: str) -> Iterator[omnibus.Bus]:
    with omnibus.connect(address) as found:
        yield found


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


# --- in a thread -----------------------------------------------------------------------------------------------------


def test_an_actor_in_a_thread_is_ready_when_serve_returns(bus: omnibus.Bus, address: str) -> None:
    with omnibus.serve(Plain, 10, name="plain", address=address) as served:
        ref = bus.actor("plain")
        assert ref.ask("add", 5).result(10) == 15
        assert list(ref.stream("count", 100)) == list(range(100))
        assert ref.ask("where").result(10) == "omnibus-plain"
        assert served.actor.value == 15 and served.running and served.name == "plain"
        assert repr(served) == f"<Served 'plain' ready at {address}>"
        assert [actor["name"] for actor in bus.status()["actors"]] == ["plain"]
    assert "omnibus-plain" not in threads()
    assert served.actor.torn_down == 1 and not served.running and served.failure is None
    assert repr(served) == f"<Served 'plain' stopped at {address}>"
    with pytest.raises(omnibus.NotFound):
        ref.ask("add", 1).result(10)


def test_coroutines_run_in_a_thread_too(bus: omnibus.Bus, address: str) -> None:
    with omnibus.serve(Later, address=address, concurrency=4) as served:
        assert served.name.startswith("Later-")
        ref = bus.actor(served.name)
        assert [future.result(10) for future in [ref.ask("meet", 4) for _ in range(4)]] == [4] * 4
        assert served.actor.most == 4
        assert list(ref.stream("count", 50)) == list(range(50))
    assert served.actor.torn_down == 1


def test_errors_are_answered_and_nothing_ends(bus: omnibus.Bus, address: str) -> None:
    with omnibus.serve(Plain, name="failing", address=address):
        ref = bus.actor("failing")
        for method, kind in (("fail", "ValueError"), ("leave", "SystemExit")):
            with pytest.raises(omnibus.RemoteError, match=kind):
                ref.ask(method).result(10)
        assert ref.ask("add", 1).result(10) == 1


def test_the_error_of_a_set_up_is_raised_with_its_cause(address: str) -> None:
    message = "actor bad could not be set up: ValueError: will not count"
    with pytest.raises(omnibus.SetupFailed, match=message) as caught:
        omnibus.serve(Plain, bad=True, name="bad", address=address)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(omnibus.SetupFailed, match="not today"):
        omnibus.serve(Unready, name="unready", address=address)
    assert not {"omnibus-bad", "omnibus-unready"} & threads()


def test_a_name_that_is_taken_is_refused_and_the_second_is_torn_down(bus: omnibus.Bus, address: str) -> None:
    made: list[Plain] = []

    def make() -> Plain:
        made.append(Plain())
        return made[-1]

    with omnibus.serve(Plain, 1, name="one", address=address):
        with pytest.raises(omnibus.AlreadyExists, match="an actor named 'one' is ready"):
            omnibus.serve(make, name="one", address=address)
        assert made[0].torn_down == 1
        assert bus.actor("one").ask("add", 1).result(10) == 2
    with omnibus.serve(Plain, 5, name="one", address=address):
        assert bus.actor("one").ask("add", 1).result(10) == 6


def test_several_at_a_time_need_coroutines(address: str) -> None:
    with pytest.raises(omnibus.SetupFailed, match="concurrency=2 is for coroutines, and Plain has none"):
        omnibus.serve(Plain, address=address, concurrency=2)


@pytest.mark.parametrize("option", ["mailbox", "concurrency"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None])
def test_options_out_of_range_are_refused(address: str, option: str, value: object) -> None:
    with pytest.raises(omnibus.UsageError, match=f"{option} must be a whole number from 1 on"):
        omnibus.serve(Plain, address=address, **{option: value})  # type: ignore[arg-type]


def test_without_a_mesh_there_is_nowhere_to_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNIBUS_ADDRESS", raising=False)
    with pytest.raises(omnibus.UsageError, match=r"no mesh to serve in: give address= \(bus.address"):
        omnibus.serve(Plain)


def test_nobody_there_is_said_in_time(tmp_path: Path) -> None:
    made: list[Plain] = []

    def make() -> Plain:
        made.append(Plain())
        return made[-1]

    with pytest.raises(omnibus.ConnectTimeout, match=r"no answer from ipc:///tmp/nobody-there within 0.2 s"):
        omnibus.serve(make, address="ipc:///tmp/nobody-there", timeout=0.2)
    assert made[0].torn_down == 1


def test_a_name_is_free_when_stop_returns(address: str) -> None:
    for number in range(20):
        with omnibus.serve(Plain, number, name="again", address=address):
            pass


# --- the end ---------------------------------------------------------------------------------------------------------


def test_stopping_waits_for_what_is_handled_and_gives_back_what_waits(bus: omnibus.Bus, address: str) -> None:
    served = omnibus.serve(Plain, name="busy", address=address)
    ref = bus.actor("busy")
    handled = ref.ask("wait")
    assert served.actor.reached.wait(10)
    waiting = ref.ask("add", 1)
    stopper = threading.Thread(target=served.stop)
    stopper.start()
    served.actor.go.set()
    stopper.join(10)
    assert handled.result(10) == "let go"
    with pytest.raises(omnibus.WorkerDied, match="busy"):
        waiting.result(10)
    assert served.actor.value == 0 and served.actor.torn_down == 1
    assert served.stop() is True and served.wait() is True


def test_a_plain_method_cannot_be_interrupted_and_stop_says_so(bus: omnibus.Bus, address: str) -> None:
    served = omnibus.serve(Plain, name="stuck", address=address)
    bus.actor("stuck").ask("wait")
    assert served.actor.reached.wait(10)
    assert served.wait(0.01) is False
    assert served.stop(0.0) is False
    served.actor.go.set()
    assert served.wait(10) is True


def test_a_coroutine_is_cancelled_when_its_time_is_over(bus: omnibus.Bus, address: str) -> None:
    served = omnibus.serve(Later, name="slow", address=address)
    future = bus.actor("slow").ask("wait")
    eventually(served.actor.reached.is_set)
    assert served.stop(0.0) is True
    with pytest.raises(omnibus.WorkerDied, match="stopped while it ran"):
        future.result(10)


def test_the_mesh_may_stop_it(bus: omnibus.Bus, address: str) -> None:
    served = omnibus.serve(Plain, name="stopped", address=address)
    bus.actor("stopped").stop()
    assert served.wait(10) is True
    assert served.actor.torn_down == 1 and served.failure is None


def test_it_may_stop_itself(bus: omnibus.Bus, address: str) -> None:
    served = omnibus.serve(Stopping, name="itself", address=address)
    served.actor.served = served
    assert bus.actor("itself").ask("stop").result(10) is False  # it cannot wait for its own end
    assert served.wait(10) is True


def test_a_broker_that_dies_is_a_failure_of_the_actor_and_of_nothing_else() -> None:
    with broker() as (address, pid):
        served = omnibus.serve(Plain, name="left", address=address)
        os.kill(pid, 9)
        with pytest.raises(omnibus.Unreachable, match=r"the broker at ipc://.* ended"):
            served.wait(10)
        assert isinstance(served.failure, omnibus.Unreachable) and not served.running
        assert served.stop() is True
        assert served.actor.torn_down == 1 and "omnibus-left" not in threads()
        assert repr(served).startswith("<Served 'left' failed at")


def test_a_fork_leaves_it_alone(bus: omnibus.Bus, address: str) -> None:
    with omnibus.serve(Plain, name="parent", address=address) as served:
        pid = os.fork()
        if not pid:
            os._exit(0 if served.stop() is False else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert bus.actor("parent").ask("add", 1).result(10) == 1


def test_a_program_that_forgets_to_stop_it_ends_all_the_same(bus: omnibus.Bus, address: str) -> None:
    script = (
        "import omnibus\n"
        "from tests.actors.embedjobs import Plain\n"
        "class Loud(Plain):\n"
        "    def teardown(self): print('torn down', flush=True)\n"
        f"served = omnibus.serve(Loud, name='forgotten', address={address!r})\n"
        "print('up', flush=True)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, cwd=Path(__file__).parents[2]
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "up\ntorn down\n", "")
    eventually(lambda: not bus.status()["actors"])


# --- asked to end ----------------------------------------------------------------------------------------------------


def test_a_plain_method_sees_that_it_was_cancelled(bus: omnibus.Bus, address: str) -> None:
    with omnibus.serve(Plain, name="watching", address=address) as served:
        future = bus.actor("watching").ask("watch")
        assert served.actor.reached.wait(10)
        future.cancel()
        with pytest.raises(omnibus.Cancelled):
            future.result(10)


def test_a_plain_method_sees_that_its_time_is_over(bus: omnibus.Bus, address: str) -> None:
    with omnibus.serve(Plain, name="timed", address=address), pytest.raises(omnibus.TaskTimeout, match=r"0\.05 s"):
        bus.actor("timed").options(timeout=0.05).ask("watch").result(10)


def test_a_coroutine_is_cancelled(bus: omnibus.Bus, address: str) -> None:
    with omnibus.serve(Later, name="cancelled", address=address) as served:
        future = bus.actor("cancelled").ask("wait")
        eventually(served.actor.reached.is_set)
        future.cancel()
        with pytest.raises(omnibus.Cancelled):
            future.result(10)
        with pytest.raises(omnibus.TaskTimeout):
            bus.actor("cancelled").options(timeout=0.05).ask("wait").result(10)


# --- on a running loop -----------------------------------------------------------------------------------------------


def test_an_actor_on_the_running_loop(address: str) -> None:
    async def main() -> None:
        async with (
            omnibus.aconnect(address) as bus,
            omnibus.serve(Later, name="here", address=address, concurrency=8) as served,
        ):
            ref = bus.actor("here")
            assert await asyncio.gather(*(ref.ask("meet", 8) for _ in range(8))) == [8] * 8
            assert served.actor.loop is asyncio.get_running_loop() and served.running
            assert [part async for part in ref.stream("count", 50)] == list(range(50))
            assert "omnibus-here" not in threads()
        assert served.actor.torn_down == 1 and not served.running

    asyncio.run(main())


def test_it_may_be_awaited_and_stopped(address: str) -> None:
    async def main() -> None:
        served = await omnibus.serve(Plain, 3, name="awaited", address=address)
        async with omnibus.aconnect(address) as bus:
            assert await bus.actor("awaited").ask("add", 1) == 4
            assert await served.wait(0.01) is False
            assert await served.stop() is True
            assert await served.wait() is True
            with pytest.raises(omnibus.NotFound):
                await bus.actor("awaited").ask("add", 1)

    asyncio.run(main())


def test_errors_of_a_set_up_are_raised_where_it_is_awaited(address: str) -> None:
    async def main() -> None:
        with pytest.raises(omnibus.SetupFailed, match="not today"):
            await omnibus.serve(Unready, address=address)
        async with omnibus.serve(Plain, name="twice", address=address):
            with pytest.raises(omnibus.AlreadyExists):
                async with omnibus.serve(Plain, name="twice", address=address):
                    pass

    asyncio.run(main())


def test_a_broker_that_dies_leaves_the_loop_alone() -> None:
    async def main() -> None:
        with broker() as (address, pid):
            served = await omnibus.serve(Plain, name="left", address=address)
            os.kill(pid, 9)
            with pytest.raises(omnibus.Unreachable):
                await served.wait(10)
            assert isinstance(served.failure, omnibus.Unreachable)
            assert await served.stop() is True

    asyncio.run(main())


def test_a_thread_may_be_asked_for_on_a_loop(bus: omnibus.Bus, address: str) -> None:
    async def main() -> None:
        served = omnibus.serve(Plain, name="threaded", address=address, thread=True)
        future = bus.actor("threaded").ask("where")
        await aeventually(future.done)
        assert future.result() == "omnibus-threaded"
        assert served.stop() is True

    asyncio.run(main())


def test_the_wrong_way_to_begin_says_the_right_one(address: str) -> None:
    async def main() -> None:
        served: Any = omnibus.serve(Plain, name="lost", address=address)
        with pytest.raises(omnibus.UsageError, match="async with"), served:
            pass
        async with served:
            pass

    asyncio.run(main())
    with omnibus.serve(Plain, name="lost", address=address) as threaded:

        async def enter() -> None:
            async with threaded:
                pass

        with pytest.raises(omnibus.UsageError, match=r"with omnibus\.serve"):
            asyncio.run(enter())


def test_what_is_never_awaited_warns(address: str) -> None:
    async def main() -> None:
        omnibus.serve(Plain, name="lost", address=address)
        gc.collect()

    with pytest.warns(RuntimeWarning, match=r"omnibus.serve\(..., name='lost'\) was never awaited"):
        asyncio.run(main())
