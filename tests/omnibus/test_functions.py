"""Functions: they arrive and run, a kept pickle is never out of date, a name lends no more than it says."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import os
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from omnibus import functions
from omnibus.errors import NotPicklable, SetupFailed, Unauthorized, UsageError
from omnibus.functions import Shelf, is_stable, load, ship


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[types.ModuleType]:
    """Return a module that can be imported, as a user's would be."""
    (tmp_path / "users_module.py").write_text(
        "import os\n"
        "from os import system\n"
        "from functools import partial\n"
        "LIMIT = 3\n"
        "def double(x): return 2 * x\n"
        "def _hidden(): pass\n"
        "class Thing:\n"
        "    @staticmethod\n"
        "    def make(): return 7\n"
        "bound = partial(double, 2)\n"
    )
    (tmp_path / "users_broken.py").write_text("import no_such_module_anywhere\n")
    (tmp_path / "users_script.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import users_module  # type: ignore[import-not-found]

    yield users_module
    for name in ("users_module", "users_broken", "users_script"):
        sys.modules.pop(name, None)


def in_main(source: str, name: str) -> Any:
    """Return what a script would define: its functions are pickled with the globals that they read."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(source, space)
    return space[name]


def stale(function: Any) -> bool:
    """Tell whether the shelf has to pickle the function anew."""
    shelf = Shelf(code=True)
    return shelf.ship(function) is not shelf.ship(function)


# --- ship and load ---


def test_a_function_of_main_goes_by_value() -> None:
    function = in_main("K = 2\ndef times(x): return K * x", "times")
    shipped = ship(function, code=True)
    assert shipped.name is None
    assert shipped.pickle is not None
    assert load(shipped.pickle, code=True)(21) == 42
    assert load(memoryview(shipped.pickle), code=True)(21) == 42
    assert shipped.digest == ship(function, code=True).digest
    assert len(shipped.digest) == 16


def test_an_importable_function_goes_by_reference(module: types.ModuleType) -> None:
    shipped = ship(module.double, code=True)
    assert shipped.pickle is not None
    assert len(shipped.pickle) < 100
    assert load(shipped.pickle, code=True) is module.double


@pytest.mark.parametrize(
    "make", [lambda: lambda x: x + 1, lambda: functools.partial(max, 1), lambda: str.upper, lambda: dict]
)
def test_any_callable_goes(make: Callable[[], Any]) -> None:
    shipped = ship(make(), code=True)
    assert shipped.pickle is not None
    assert callable(load(shipped.pickle, code=True))


def test_arrays_in_a_closure_go_into_the_pickle() -> None:
    np = pytest.importorskip("numpy")
    table = np.arange(100_000)
    shipped = ship(lambda place: table[place], code=True)
    assert shipped.pickle is not None
    assert load(shipped.pickle, code=True)(7) == 7


def test_a_name_passes_as_it_is(module: types.ModuleType) -> None:
    for code in (True, False):
        shipped = ship("users_module:Thing.make", code=code)
        assert (shipped.name, shipped.pickle) == ("users_module:Thing.make", None)
    assert shipped.digest != ship("users_module:double", code=True).digest
    assert load("users_module:Thing.make", code=True)() == 7


def test_without_pickles_an_importable_function_goes_by_its_name(module: types.ModuleType) -> None:
    assert ship(module.Thing, code=False).name == "users_module:Thing"
    assert ship(module.Thing.make, code=False).name == "users_module:Thing.make"


@pytest.mark.parametrize(
    "function",
    [
        lambda: 1,
        functools.partial(max, 1),
        in_main("def f(): pass", "f"),
        [].append,
        in_main("class C: pass", "C"),
    ],
)
def test_without_pickles_other_functions_are_refused(function: Any) -> None:
    with pytest.raises(NotPicklable, match="top level of a module"):
        ship(function, code=False)


@pytest.mark.parametrize(
    "name", ["", "a", "a:", ":b", "a:b:c", "a b:c", "../x:y", "a:b.", "1a:b", "os.system"]
)
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"package\.module:function"):
        ship(name, code=True)
    with pytest.raises(SetupFailed, match="no name of a function"):
        load(name, code=True)


def test_a_name_with_a_dot_for_a_colon_is_guessed() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'os\.path:join'"):
        ship("os.path.join", code=True)


def test_a_name_in_main_and_what_is_no_function_are_refused() -> None:
    with pytest.raises(UsageError, match="submit the function itself"):
        ship("__main__:work", code=True)
    with pytest.raises(UsageError, match="not 5"):
        ship(5, code=True)


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("import threading\nlock = threading.Lock()\ndef work(): return lock", "global 'lock'"),
        (
            "import threading\ndef outer():\n lock = threading.Lock()\n return lambda: lock\nwork = outer()",
            "variable 'lock'",
        ),
        ("import threading\ndef work(lock=threading.Lock()): pass", r"__defaults__\[0\]"),
        ("import threading\ndef work(*, lock=threading.Lock()): pass", r"__kwdefaults__\['lock'\]"),
        ("import threading\nclass work:\n  lock = threading.Lock()", r"\.lock"),
        ("import threading, functools\nwork = functools.partial(max, threading.Lock())", r"args\[0\]"),
        (
            "import threading, functools\nwork = functools.partial(max, key=threading.Lock())",
            r"keywords\['key'\]",
        ),
        (
            "import threading\nclass C:\n def __init__(s): s.l = threading.Lock()\n def f(s): 1\nwork=C().f",
            r"__self__\.l",
        ),
        (
            "import threading, types\nz = threading.Lock()\ndef f(s): len(z)\nwork = types.MethodType(f, 5)",
            r"__func__'s global 'z'",
        ),
        (
            "import threading\ndef work(): return inner()\ndef inner(): return lock\nlock = threading.Lock()",
            "global 'lock'",
        ),
    ],
)
def test_what_cannot_be_pickled_is_named_with_its_function(source: str, where: str) -> None:
    with pytest.raises(NotPicklable, match=f"cannot be sent because of .*{where}, which is a _thread.lock"):
        ship(in_main(source, "work"), code=True)


def test_the_search_for_what_cannot_be_pickled_ends() -> None:
    class Broken:
        @property
        def __dict__(self) -> Any:  # type: ignore[override]
            raise RuntimeError("no")

        def __reduce_ex__(self, protocol: Any) -> Any:
            raise RuntimeError("no")

    empty: Any = types.CellType()
    knot: Any = [threading.Lock()]
    knot.insert(0, knot)
    wide = {number: number for number in range(500)} | {"last": threading.Lock()}
    many = types.FunctionType((lambda lock: empty).__code__, globals(), "many", (threading.Lock(),), (empty,))
    kind = in_main("import threading\nclass C:\n  __lock__ = threading.Lock()", "C")
    for value in (Broken(), knot, wide, many, kind):
        with pytest.raises(NotPicklable, match="cannot be sent"):
            ship(functools.partial(max, value), code=True)


# --- load ---


def test_without_code_a_pickle_is_not_loaded() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("it was unpickled",))

    with pytest.raises(Unauthorized, match="send the name"):
        load(pickle.dumps(Trap()), code=False, allow=["omnibus"])


def test_names_are_held_to_the_list(module: types.ModuleType) -> None:
    assert load("users_module:double", code=False, allow=["users_module"])(2) == 4
    assert load("users_module:Thing.make", code=True, allow=["other", "users_module"])() == 7
    assert load("users_module:double", code=True)(2) == 4


@pytest.mark.parametrize(
    ("name", "allow"),
    [
        ("users_module:double", []),
        ("users_module:double", ["users"]),
        ("users_module:double", ["users_module.sub"]),
        ("users_module:system", ["users_module"]),
        ("users_module:os.system", ["users_module"]),
        ("users_module:os.path.join", ["users_module"]),
        ("users_module:_hidden", ["users_module"]),
        ("users_module:double.__globals__", ["users_module"]),
        ("users_module:double.__globals__.get", ["users_module"]),
        ("users_module:Thing.__class__", ["users_module"]),
        ("users_module:bound", ["users_module"]),
        ("users_module:partial", ["users_module"]),
        ("os:system", ["users_module"]),
    ],
)
def test_a_name_beside_the_list_is_refused(module: types.ModuleType, name: str, allow: list[str]) -> None:
    with pytest.raises(Unauthorized, match=str(allow[0]) if allow else "no module"):
        load(name, code=False, allow=allow)
    if allow:
        with pytest.raises(Unauthorized):
            load(name, code=True, allow=allow)


def test_a_module_that_is_not_there_says_where_it_was_looked_for() -> None:
    with pytest.raises(
        SetupFailed, match=r"'no_such_module:work'.*ModuleNotFoundError.*sys\.path.*PYTHONPATH"
    ):
        load("no_such_module:work", code=True)


def test_a_module_that_fails_says_why(module: types.ModuleType) -> None:
    with pytest.raises(
        SetupFailed, match=r"'users_broken' could not be imported.*'no_such_module_anywhere' is not on"
    ):
        load("users_broken:work", code=True)
    with pytest.raises(SetupFailed, match=r"'users_script' could not be imported: SystemExit: 3"):
        load("users_script:work", code=True)


def test_a_function_that_is_not_there_is_guessed(module: types.ModuleType) -> None:
    with pytest.raises(
        SetupFailed,
        match=r"no 'duoble' in module 'users_module' \(.*users_module\.py\); did you mean 'double'",
    ):
        load("users_module:duoble", code=True)
    with pytest.raises(SetupFailed, match=r"no 'zzzz' in module 'builtins' \(no file\)$"):
        load("builtins:zzzz", code=True)


def test_what_cannot_be_called_is_refused(module: types.ModuleType) -> None:
    with pytest.raises(SetupFailed, match="'users_module:LIMIT' is a int"):
        load("users_module:LIMIT", code=True)
    with pytest.raises(SetupFailed, match="pickle of 4 bytes is a NoneType"):
        load(b"\x80\x05N.", code=True)


def test_a_pickle_whose_module_has_changed_says_so(module: types.ModuleType) -> None:
    data = ship(module.double, code=True).pickle
    assert data is not None
    del module.double
    with pytest.raises(SetupFailed, match="another version"):
        load(data, code=True)


def test_garbage_is_refused() -> None:
    with pytest.raises(SetupFailed, match="could not be unpickled"):
        load(b"garbage", code=True)


def test_a_function_runs_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from omnibus.functions import ship\n"
        "K = 20\n"
        "def helper(x): return K + x\n"
        "class Model:\n"
        "    def predict(self, x): return helper(x)\n"
        "def work(x): return Model().predict(x)\n"
        "sys.stdout.buffer.write(ship(work, code=True).pickle)\n"
    )
    root = Path(functions.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    ran = subprocess.run([sys.executable, script], capture_output=True, env=environment, check=True)
    assert load(ran.stdout, code=True)(22) == 42


# --- what may be pickled once ---


@pytest.mark.parametrize(
    "make",
    [
        lambda module: module.double,
        lambda module: module.Thing,
        lambda module: len,
        lambda module: dict,
        lambda module: "a:b",
        lambda module: in_main("def f(x): return len(x)", "f"),
        lambda module: in_main("def f(x, y=(1, 'a')): return [a for a in x]", "f"),
    ],
)
def test_stable_functions(module: types.ModuleType, make: Any) -> None:
    assert is_stable(make(module))
    assert not stale(make(module))


@pytest.mark.parametrize(
    "make",
    [
        lambda: [].append,
        lambda: functools.partial(max, 1),
        lambda: collections.Counter().update,
        lambda: (lambda x: lambda: x)(1),
        lambda: in_main("def f(x=[]): pass", "f"),
        lambda: in_main("def f(*, x={}): pass", "f"),
        lambda: in_main("def f(): pass\nf.state = []", "f"),
        lambda: in_main("L = []\ndef f(): return L", "f"),
        lambda: in_main("L = []\ndef g(): return L\ndef f(): return g()", "f"),
        lambda: in_main("append = [].append\ndef f(): return append(1)", "f"),
        lambda: in_main("class C:\n  seen = []\ndef f(): return C", "f"),
        lambda: in_main("L = []\nclass C:\n  def m(self): return L\ndef f(): return C", "f"),
        lambda: in_main(
            "L = []\nclass B:\n  def m(self): return L\nclass C(B): pass\ndef f(): return C", "f"
        ),
        lambda: in_main("L = []\nclass C:\n  @property\n  def m(self): return L\ndef f(): return C", "f"),
        lambda: in_main("L = []\nclass C:\n  @classmethod\n  def m(cls): return L\ndef f(): return C", "f"),
        lambda: type("Unhashable", (), {"__call__": lambda self: 1, "__hash__": None})(),
    ],
)
def test_functions_with_state_are_pickled_each_time(make: Any) -> None:
    function = make()
    assert not is_stable(function)
    assert stale(function)


@pytest.mark.parametrize(
    "source",
    [
        "K = 1\ndef f(): return K",
        "K = (1, frozenset({2}))\ndef f(): return K",
        "import os\ndef f(): return os",
        "def f(): return f",
        "def g(): return 1\ndef f(): return [g() for _ in range(3)]",
        "def f(): return later",
        "def f(): pass\nf.state = 1",
        "import logging\nlog = logging.getLogger('x')\ndef f(): log.info('x')",
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n  x: int = 1\ndef f(): return C()",
        "class C:\n  __slots__ = ('x',)\n  @staticmethod\n  def m(): return C\ndef f(): return C()",
        "import abc\nclass C(abc.ABC):\n  @abc.abstractmethod\n  def m(self): ...\ndef f(): return C()",
    ],
)
def test_a_function_that_reads_names_is_kept_while_they_stay_bound(source: str) -> None:
    function = in_main(source, "f")
    assert not is_stable(function)
    assert not stale(function)


def test_a_name_bound_anew_makes_a_new_pickle() -> None:
    function = in_main("K = 1\ndef g(): return K\ndef f(): return g()", "f")
    shelf = Shelf(code=True)
    first = shelf.ship(function)
    function.__globals__["K"] = 2
    second = shelf.ship(function)
    assert second.digest != first.digest
    assert second.pickle is not None
    assert load(second.pickle, code=True)() == 2
    assert shelf.ship(function) is second
    exec("def g(): return 5", function.__globals__)
    third = shelf.ship(function)
    assert third.pickle is not None
    assert load(third.pickle, code=True)() == 5


def test_a_method_bound_anew_makes_a_new_pickle() -> None:
    function = in_main("class C:\n  def m(self): return 1\ndef f(): return C().m()", "f")
    shelf = Shelf(code=True)
    first = shelf.ship(function)
    function.__globals__["C"].m = lambda self: 2
    assert shelf.ship(function).digest != first.digest


def test_a_module_that_is_pickled_by_value_is_watched(module: types.ModuleType) -> None:
    exec("def work(): return LIMIT", module.__dict__)
    assert is_stable(module.work)
    cloudpickle.register_pickle_by_value(module)
    try:
        assert not is_stable(module.work)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def test_a_shelf_without_pickles_keeps_names(module: types.ModuleType) -> None:
    shelf = Shelf(code=False)
    assert shelf.ship(module.double) is shelf.ship(module.double)
    assert shelf.ship("users_module:double") == shelf.ship(module.double)


def test_a_shelf_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_SHELF", 10)
    shelf = Shelf(code=True)
    for number in range(100):
        shelf.ship(f"module:function{number}")
    assert len(shelf._kept) <= 10


def test_things_of_the_standard_library_are_named(module: types.ModuleType) -> None:
    assert functions.name_of(module.Thing.make) == "users_module:Thing.make"
    assert functions.name_of(logging.getLogger) == "logging:getLogger"
    assert functions.name_of(dataclasses.dataclass(type("Local", (), {}))) is None
    assert functions.name_of(5) is None
    assert functions.name_of(lambda: 1) is None
