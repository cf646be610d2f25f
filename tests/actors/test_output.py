"""Children's output: lines as they were printed, bounded, at a bounded rate, and none read that cannot be kept."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from omnibus.actors.output import KEPT_LINES, LINE_BYTES, LineReader, Outputs, say_most


class Pipe:
    """A pipe, its reader, and the lines that came."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self.lines: list[str] = []
        self.reader = LineReader(reader, self.lines.append, 0.0)

    def write(self, data: bytes) -> None:
        os.write(self.writer, data)

    def end(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.end()
    made.reader.close()


def test_lines_come_whole_and_in_order(pipe: Pipe) -> None:
    pipe.write(b"eins\nzw")
    pipe.reader.read(0.0)
    assert pipe.lines == ["eins"]
    pipe.write("ölf\n\n".encode())
    pipe.reader.read(0.1)
    assert pipe.lines == ["eins", "zwölf", ""]
    assert pipe.reader.flush_at == 0


def test_an_empty_pipe_is_no_end(pipe: Pipe) -> None:
    pipe.reader.read(0.0)
    assert pipe.reader.open
    assert pipe.lines == []


def test_a_line_without_end_is_given_out_after_a_while(pipe: Pipe) -> None:
    pipe.write(b"50 %")
    pipe.reader.read(10.0)
    assert pipe.lines == []
    assert 10.0 < pipe.reader.flush_at < 11.0
    pipe.reader.flush()
    assert pipe.lines == ["50 %"]
    assert pipe.reader.flush_at == 0


def test_the_end_gives_out_what_is_left(pipe: Pipe) -> None:
    pipe.write(b"last words")
    pipe.reader.read(0.0)
    pipe.end()
    pipe.reader.read(0.0)
    assert pipe.lines == ["last words"]
    assert not pipe.reader.open
    pipe.reader.read(0.0)
    assert pipe.lines == ["last words"]


def test_a_progress_bar_is_its_last_state(pipe: Pipe) -> None:
    pipe.write(b"\r 1%\r 2%\r 3%\ndone\r\n")
    pipe.reader.read(0.0)
    assert pipe.lines == [" 3%", "done"]


def test_a_long_line_is_cut(pipe: Pipe) -> None:
    pipe.write(b"x" * (2 * LINE_BYTES + 10) + b"\n" + b"y" * (LINE_BYTES + 1))
    pipe.reader.read(0.0)
    pipe.reader.flush()
    assert [len(line) for line in pipe.lines] == [LINE_BYTES, LINE_BYTES, 10, LINE_BYTES, 1]


def test_bytes_that_are_no_text_do_no_harm(pipe: Pipe) -> None:
    pipe.write(b"\xff\xfe\n")
    pipe.reader.read(0.0)
    assert pipe.lines == ["\ufffd\ufffd"]


def test_a_flood_pauses_its_reader(pipe: Pipe) -> None:
    paused = 0.0
    for _ in range(100):
        pipe.write(b"x" * 49 + b"\n" * 1)
        pipe.write((b"x" * 49 + b"\n") * 1200)
        pipe.reader.read(5.0)
        paused = pipe.reader.paused_until
        if paused:
            break
    assert 5.0 < paused < 6.0
    pipe.reader.read(paused + 10)
    assert not pipe.reader.paused_until, "the allowance is back"


def test_draining_takes_everything_however_much(pipe: Pipe) -> None:
    pipe.write(b"a\n" * 30_000)
    pipe.reader.drain()
    assert len(pipe.lines) == 30_000


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], ""),
        (["", "  "], ""),
        (["Traceback (most recent call last):", "  File", "ValueError: no", ""], "ValueError: no"),
        (["Fatal Python error: Aborted", "", "Current thread", "  File x"], "Fatal Python error: Aborted"),
        (["x" * 500], "x" * 200),
    ],
)
def test_the_line_that_says_most(lines: list[str], said: str) -> None:
    assert say_most(deque(lines)) == said


class Loop:
    """A poll loop that the test turns."""

    def __init__(self) -> None:
        self.handlers: dict[int, Callable[[float], None]] = {}
        self.outputs = Outputs(self.handlers.__setitem__, lambda fd: self.handlers.pop(fd, None) and None)

    def turn(self, now: float) -> None:
        for handler in list(self.handlers.values()):
            handler(now)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def publish(loop: Loop, pipe: Pipe) -> None:
    """Have the pipe's lines become records, as the supervisor does."""
    pipe.reader._emit = lambda text: loop.outputs.lines.append([0, 0, text, None, 0])


def test_unfinished_lines_are_given_out_in_time(loop: Loop, pipe: Pipe) -> None:
    loop.outputs.open(pipe.reader)
    pipe.write(b"...")
    loop.turn(1.0)
    when = loop.outputs.next_deadline()
    assert when is not None
    loop.outputs.on_time(when - 0.01)
    assert pipe.lines == []
    loop.outputs.on_time(when)
    assert pipe.lines == ["..."]
    assert loop.outputs.next_deadline() is None


def test_a_paused_reader_goes_on_in_time(loop: Loop, pipe: Pipe) -> None:
    loop.outputs.open(pipe.reader)
    while pipe.reader.fd in loop.handlers:
        pipe.write((b"x" * 49 + b"\n") * 1200)
        loop.turn(1.0)
    when = loop.outputs.next_deadline()
    assert when is not None
    assert when > 1.0
    loop.outputs.on_time(when)
    assert pipe.reader.fd in loop.handlers


def test_nothing_is_read_that_nobody_takes_yet(loop: Loop, pipe: Pipe) -> None:
    publish(loop, pipe)
    loop.outputs.taken = True
    loop.outputs.open(pipe.reader)
    for _ in range(3):
        pipe.write(b"a\n" * KEPT_LINES)
        loop.turn(1.0)
    assert KEPT_LINES // 2 <= len(loop.outputs.lines) <= KEPT_LINES
    assert pipe.reader.fd not in loop.handlers
    loop.outputs.on_time(2.0)
    assert pipe.reader.fd not in loop.handlers
    loop.outputs.lines.clear()
    assert loop.outputs.next_deadline() == 0.0
    loop.outputs.on_time(2.0)
    assert pipe.reader.fd in loop.handlers
    loop.turn(2.0)
    assert loop.outputs.lines


def test_without_a_broker_children_are_read_and_the_newest_lines_kept(loop: Loop, pipe: Pipe) -> None:
    publish(loop, pipe)
    loop.outputs.open(pipe.reader)
    for number in range(3 * KEPT_LINES):
        pipe.write(f"{number}\n".encode())
        loop.turn(float(number))
    assert len(loop.outputs.lines) == KEPT_LINES
    assert loop.outputs.lines[-1][2] == str(3 * KEPT_LINES - 1)


def test_closing_forgets_a_reader(loop: Loop, pipe: Pipe) -> None:
    loop.outputs.open(pipe.reader)
    pipe.write(b"...")
    loop.turn(1.0)
    loop.outputs.close(pipe.reader)
    assert not loop.handlers
    assert loop.outputs.next_deadline() is None
