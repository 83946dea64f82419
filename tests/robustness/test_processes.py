"""fork, spawn, process pools, an interpreter that ends while calls run, KeyboardInterrupt in a long call."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import numpy as np
import pytest
from helpers import python, try_python

import backstroke as bs
from backstroke.registry import OPS, results

METHODS = [m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()]


def every_op() -> list[bytes]:
    """The bits of every op on its small problem."""
    found = []
    for op in OPS:
        arguments, keywords = op.example(np.random.default_rng(0), op.small, np.float32)
        found += [a.tobytes() for a in results(op.function(*arguments, **keywords))]
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_pool_of_processes_computes_the_same_bits(method: str) -> None:
    want = every_op()  # the parent's threads are there before it forks
    bs.relu_grad(np.ones(10**6, np.float32), np.ones(10**6, np.float32))
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as pool:
        for found in [pool.submit(every_op) for _ in range(6)]:
            assert found.result(timeout=300) == want


def test_forks_while_other_threads_call() -> None:
    code = """
        import os, threading, numpy as np, backstroke as bs
        x = np.ones(300_000, np.float32)
        stop = threading.Event()
        def call():
            while not stop.is_set():
                assert bs.tanh_grad(x, x).sum() == 0
        threads = [threading.Thread(target=call) for _ in range(4)]
        for t in threads: t.start()
        for _ in range(20):
            pid = os.fork()
            if not pid:
                ok = float(bs.relu_grad(x, x).sum()) == 300_000
                os._exit(0 if ok else 1)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for t in threads: t.join()
        print("well")
    """
    assert python(_plain(code), timeout=300).split() == ["well"]


def _plain(code: str) -> str:
    """Python warns of fork beside threads; that is what is tested."""
    return "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + textwrap.dedent(code)


@pytest.mark.parametrize("daemon", [True, False])
def test_the_interpreter_ends_while_calls_run(daemon: bool) -> None:
    code = f"""
        import threading, numpy as np, backstroke as bs
        x = np.ones(2_000_000, np.float32)
        image, w = np.ones((4, 16, 56, 56), np.float32), np.ones((16, 16, 3, 3), np.float32)
        begun = threading.Barrier(4)
        def one():
            bs.softmax_grad(x, x)
            bs.conv_grad(image, image, w, pads=1)
            bs.max_pool_grad_from_input(image[..., ::2, ::2], image, 2)
        def call():
            one()
            begun.wait()
            for _ in range(100 if {daemon} else 5):
                one()
        for _ in range(3):
            threading.Thread(target=call, daemon={daemon}).start()
        begun.wait()
    """
    for _ in range(5):
        done = try_python(code, timeout=120)
        assert done.returncode == 0, done.stderr


def test_keyboard_interrupt_in_a_long_call() -> None:
    """It is raised when the call ends, and the library goes on working."""
    code = """
        import numpy as np, backstroke as bs
        x = np.ones((64, 1 << 18), np.float32)
        bs.softmax_grad(x, x)
        caught = 0
        for _ in range(3):
            try:
                print("ready", flush=True)
                while True:
                    bs.softmax_grad(x, x)
            except KeyboardInterrupt:
                caught += 1
                assert bs.relu_grad(x, x).all()
        print("well", caught)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for wait in (0.05, 0.2, 0):
        assert child.stdout.readline() == "ready\n"
        time.sleep(wait)
        os.kill(child.pid, signal.SIGINT)
    rest, _ = child.communicate(timeout=120)
    assert child.returncode == 0
    assert rest.split() == ["well", "3"]


def test_keyboard_interrupt_in_one_call_of_seconds() -> None:
    """The call goes on to its end: what it wrote is whole."""
    code = """
        import time, numpy as np, backstroke as bs
        rng = np.random.default_rng(0)
        x, w = rng.standard_normal((16, 32, 64, 64), np.float32), rng.standard_normal((32, 32, 3, 3), np.float32)
        def call(repeat):
            return bs.conv_grad(np.tile(x, (repeat, 1, 1, 1)), np.tile(x, (repeat, 1, 1, 1)), w, pads=1, wrt="x").dx
        one, repeat = call(1), 1
        while True:
            begin = time.perf_counter()
            whole = call(repeat)
            if time.perf_counter() - begin > 1 or repeat == 32:
                break
            repeat *= 2
        dy = np.tile(x, (repeat, 1, 1, 1))
        out = np.zeros_like(whole)
        bs.conv_grad(dy, dy, w, pads=1, wrt="x", out=out)
        out[...] = 0
        print("ready", flush=True)
        try:
            bs.conv_grad(dy, dy, w, pads=1, wrt="x", out=out)
            time.sleep(60)
        except KeyboardInterrupt:
            print("whole" if (out == whole).all() else "half" if out.any() else "nothing")
        assert (call(1) == one).all()
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.05)
    os.kill(child.pid, signal.SIGINT)
    rest, _ = child.communicate(timeout=300)
    assert child.returncode == 0
    assert rest.split() == ["whole"]


def test_threads_that_come_and_go() -> None:
    x = np.ones(100_000, np.float32)

    def call(_: Any) -> float:
        return float(bs.relu_grad(x, x).sum())

    for _ in range(10):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            assert set(pool.map(call, range(32))) == {100_000.0}
