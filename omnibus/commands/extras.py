"""``omnibus bench`` and ``omnibus demo``: what has a command line of its own, and is loaded when it is called."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from omnibus.commands.base import FAILED, say
from omnibus.errors import UsageError

__all__ = ["bench", "demo"]


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Some of them; all without.", show_default=False),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take some seconds: shows that all works, and rough figures.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> int:
    """Measure Omnibus, each claim beside its reference, in the same minutes on this machine.

    It needs a checkout: the benchmarks are not part of what pip installs. A wrong NAME lists them.

    **Examples**

    ```sh
    omnibus bench --quick
    omnibus bench throughput latency --json
    ```
    """
    root = _checkout()
    sys.path.insert(0, str(root))
    main = importlib.import_module("benchmarks.__main__").main
    return int(_call(main, [*(names or ()), *["--quick"] * quick, *["--json"] * json]))


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="A few rounds only.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed gives the same accuracy.")] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object, and nothing else.")
    ] = False,
) -> int:
    """Watch a mesh train a small network on handwritten digits, and lose nothing when one of its workers is killed.

    Needs torch and scikit-learn: pip install 'omnibus[demo]'. It starts a mesh of its own and ends it.

    **Examples**

    ```sh
    omnibus demo
    omnibus demo --quick --json
    ```
    """
    try:
        main = importlib.import_module("omnibus.demo").main
        return int(_call(main, ["--seed", str(seed), *["--quick"] * quick, *["--json"] * json]))
    except ImportError as error:
        # An error of its own code is no missing library, and hides nothing.
        if not error.name or error.name.partition(".")[0] == "omnibus":
            raise
        say("demo", f"{error.name} is not installed: pip install 'omnibus[demo]'")
        return FAILED


def _checkout() -> Path:
    """Return the root of the checkout that this package is part of."""
    import omnibus

    root = Path(omnibus.__file__).resolve().parent.parent
    if not (root / "benchmarks" / "__main__.py").is_file():
        raise UsageError(
            f"the benchmarks are not installed with the package (looked in {root}): clone the repository, and run "
            "`make test`, then `.venv/bin/omnibus bench` there"
        )
    return root


def _call(main: object, argv: list[str]) -> int:
    """Call a command line's ``main``; argparse ends wrong usage by ``SystemExit``."""
    assert callable(main)
    try:
        return int(main(argv))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED
