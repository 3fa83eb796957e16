"""Do the tests notice a wrong line? Changes one operator or constant of the product at a time, and runs its tests.

    python -m tests.mutations --count=200 --seed=0 --workers=2 [--only=bert_tf/training]

Each mutation is made in a copy of the tree. The tests that run against it are those whose place mirrors the changed
module: first its own file, then its folder. A mutation that no test notices is printed with its line, so that a test
can be written for it. Some of them are equivalent to the original: a changed buffer size changes no result.
"""

import argparse
import ast
import copy
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ("bert_tf", "data_prep")
SECONDS_FOR_TESTS = 240  # a mutation may cause an endless loop

SWAPPED = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
}
# Where the tests of a module lie, if not in a file or folder of the same name.
ELSEWHERE = {
    "bert_tf/finetuning/models.py": "tests/model/test_heads.py tests/finetuning tests/tasks/squad/test_run.py",
    "bert_tf/finetuning/selection.py": "tests/tasks/test_metrics.py tests/finetuning tests/tasks/test_custom.py",
    "bert_tf/model/gathering.py": "tests/model tests/test_encoder.py",
    "bert_tf/sequences/graph_packing.py": "tests/sequences tests/serving",
    "bert_tf/features.py": "tests/test_features.py tests/tasks/tagging",
    "bert_tf/pretraining/model.py": "tests/model/test_heads.py tests/pretraining",
    "bert_tf/export.py": "tests/test_export.py tests/serving",
    "bert_tf/predict.py": "tests/test_export.py",
    "bert_tf/convert_checkpoint.py": "tests/checkpoints",
    "bert_tf/program_flags": "tests/test_program_flags.py tests/pretraining tests/tasks/test_run_classifier.py",
    "bert_tf/serving": "tests/serving tests/test_export.py",
    "bert_tf/tasks/served.py": "tests/serving tests/test_export.py",
    "bert_tf/tasks/tagging/served.py": "tests/tasks/tagging tests/serving tests/test_export.py",
    "bert_tf/tasks/tagging/served_by_features.py": "tests/tasks/tagging tests/serving tests/test_export.py",
    "bert_tf/tasks/squad/served.py": "tests/tasks/squad/test_modes.py tests/serving tests/test_export.py",
    "bert_tf/model/cpu_kernels.py": "tests/model",
    "data_prep/preparation_flags.py": "tests/data_prep/jobs",
    "data_prep/create_pretraining_data.py": "tests/data_prep/jobs tests/data_prep/examples",
    "data_prep/build_vocab.py": "tests/data_prep/corpus",
    "data_prep/beam_pipeline.py": "tests/data_prep/jobs",
    "data_prep/examples": "tests/data_prep/examples tests/data_prep/jobs",
}


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The nodes that can be changed, with what would be done to each."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
            yield node, "comparison"
        elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in SWAPPED:
            # A path or a message that is put together is no arithmetic.
            if not any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in ast.iter_child_nodes(node)):
                yield node, "operator"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "negation"
        elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node, "constant"
        elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield node, "return"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutated(source: str, number: int) -> tuple[str, int, str]:
    """The source with its place of this number changed; the line, and what was changed there."""
    tree = ast.parse(source)
    node, kind = list(places(tree))[number]
    before = ast.unparse(copy.deepcopy(node))
    if kind == "comparison":
        node.ops[0] = SWAPPED[type(node.ops[0])]()
    elif kind == "operator":
        node.op = SWAPPED[type(node.op)]()
    elif kind == "negation":
        node.op, node.operand = ast.Not(), ast.UnaryOp(ast.Not(), node.operand)
    elif kind == "return":
        node.value = ast.Constant(None)
    elif isinstance(node.value, bool):
        node.value = not node.value
    else:
        node.value = node.value * 2 + 1
    return ast.unparse(ast.fix_missing_locations(tree)), node.lineno, f"{before}  ->  {ast.unparse(node)}"


def tests_of(module: str) -> list[list[str]]:
    """The tests to run for a module, in rounds: those most likely to notice a change come first."""
    path = pathlib.PurePosixPath(module)
    for place in (module, str(path.parent)):
        if place in ELSEWHERE:
            return [ELSEWHERE[place].split()]
    folder = pathlib.PurePosixPath("tests", *path.parts[path.parts[0] == "bert_tf" : -1])
    own = folder / f"test_{path.name}"
    rounds = [[str(own)]] if (ROOT / own).exists() else []
    return rounds + ([[str(folder)]] if len(folder.parts) > 1 and folder.name != "data_prep" else [])


class Tree:
    """A copy of the checkout that one worker changes."""

    def __init__(self) -> None:
        self.root = pathlib.Path(tempfile.mkdtemp()) / "tree"
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(lambda name: (ROOT / name).exists(), listed.splitlines()):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, self.root / name)
        if (ROOT.parent / "shared").exists():
            (self.root.parent / "shared").symlink_to(ROOT.parent / "shared")

    def first_failure(self, tests: list[str]) -> str | None:
        """Runs tests in a fork of this process, which has imported the slow libraries already.

        Returns:
          The test that failed first, or was still running when the time was over; None if all pass.
        """
        log = self.root.parent / "running"
        log.write_text(tests[0])
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            os.chdir(self.root)
            sys.path[:] = [str(self.root), *(path for path in sys.path if path not in ("", str(ROOT)))]
            for name in [name for name in sys.modules if name.split(".")[0] in ("tests", *PRODUCT)]:
                del sys.modules[name]
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            import pytest

            options = ["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
            os._exit(pytest.main([*options, *tests], plugins=[_NamesTheRunningTest(log)]))
        end = time.monotonic() + SECONDS_FOR_TESTS
        while time.monotonic() < end:
            finished, status = os.waitpid(child, os.WNOHANG)
            if finished:
                return log.read_text() if os.waitstatus_to_exitcode(status) else None
            time.sleep(0.1)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return log.read_text()

    def noticing_test(self, module: str, source: str) -> str | None:
        """The test that fails with this source in the module's place; None if all pass."""
        path = self.root / module
        original = path.read_text()
        path.write_text(source)
        try:
            failures = (self.first_failure(tests) for tests in tests_of(module))
            return next((failure for failure in failures if failure), None)
        finally:
            path.write_text(original)


class _NamesTheRunningTest:
    """A plugin of pytest: the last test in the file is the one that failed, since pytest stops there."""

    def __init__(self, log: pathlib.Path) -> None:
        self._log = log

    def pytest_runtest_logstart(self, nodeid):
        self._log.write_text(nodeid)


def _work(mutations: "multiprocessing.Queue", results: "multiprocessing.Queue") -> None:
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    sys.dont_write_bytecode = True  # a module changes twice within a second
    import keras  # noqa: F401
    import pytest  # noqa: F401
    import tensorflow as tf  # noqa: F401

    tree = Tree()
    passes_unchanged: dict[str, bool] = {}
    while (mutation := mutations.get()) is not None:
        module, number = mutation
        source, line, change = mutated((tree.root / module).read_text(), number)
        test = tree.noticing_test(module, source)
        if test and test not in passes_unchanged:
            passes_unchanged[test] = tree.first_failure([test]) is None
        outcome = "survived" if test is None else "noticed" if passes_unchanged[test] else f"{test} fails anyway"
        results.put((module, line, change, outcome))
    shutil.rmtree(tree.root.parent)


def main() -> None:
    """Makes the mutations and prints those that survive."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="How many mutations.")
    parser.add_argument("--seed", type=int, default=0, help="Of their choice.")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="Processes at once.")
    parser.add_argument("--only", default="", help="What the paths of the changed modules start with.")
    args = parser.parse_args()

    modules = sorted(str(path.relative_to(ROOT)) for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    candidates = [
        (module, number)
        for module in modules
        if module.startswith(args.only) and tests_of(module)
        for number in range(len(list(places(ast.parse((ROOT / module).read_text())))))
    ]
    chosen = random.Random(args.seed).sample(candidates, min(args.count, len(candidates)))
    context = multiprocessing.get_context("spawn")
    mutations, results = context.Queue(), context.Queue()
    for mutation in [*chosen, *[None] * args.workers]:
        mutations.put(mutation)
    workers = [context.Process(target=_work, args=(mutations, results)) for _ in range(args.workers)]
    for worker in workers:
        worker.start()
    counts: dict[str, int] = {}
    for done in range(1, len(chosen) + 1):
        module, line, change, outcome = results.get()
        counts[outcome] = counts.get(outcome, 0) + 1
        if outcome != "noticed":
            print(f"{outcome}: {module}:{line}: {change}", flush=True)
        print(f"{done} of {len(chosen)}", file=sys.stderr, flush=True)
    for worker in workers:
        worker.join()
    print(f"{len(chosen)} of {len(candidates)} possible mutations tried (seed {args.seed}): {counts}")


if __name__ == "__main__":
    main()
