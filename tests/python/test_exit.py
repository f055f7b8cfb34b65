"""18: alive at exit. Every way to leave prints nothing and answers 0. Each in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from support import assert_silent, run_python

START = """
import gc, threading, sys, warnings
import gvmm
from gvmm import Buffer, VirtualMemoryResource
resource = VirtualMemoryResource(0)
stream = gvmm.Stream()
"""

PROGRAMS = {
    "a live buffer": "buffer = resource.allocate(1, stream=stream)",
    "grown": "buffer = resource.allocate(1); large = resource.modify_allocation(buffer, 1 << 24)",
    "work in flight": """
        from support import delay
        buffer = resource.allocate(1, stream=stream)
        delay(stream, 0.3)
        buffer.fill(1, stream=stream)
    """,
    "a cycle": """
        class Engine: pass
        engine = Engine()
        engine.me, engine.stream = engine, stream
        engine.buffer = resource.allocate(1, stream=stream)
        del engine
    """,
    "a cycle with a finalizer": """
        class Engine:
            def __del__(self): self.buffer.size
        engine = Engine()
        engine.me = engine
        engine.buffer = resource.allocate(1, stream=stream)
    """,
    "held by a module": "buffer = resource.allocate(1); sys.kept = buffer; threading.kept = buffer; gc.kept = resource",
    "held by an extension": "import atexit; buffer = resource.allocate(1); atexit.register(lambda b: None, buffer)",
    "closed at exit": "import atexit; buffer = resource.allocate(1, stream=stream); atexit.register(buffer.close)",
    "in a thread": """
        def work():
            global local
            local = resource.allocate(1)
            threading.current_thread().buffer = resource.modify_allocation(local, 1 << 23)
        thread = threading.Thread(target=work)
        thread.start()
    """,
    "in a daemon thread": """
        started = threading.Event()
        def work():
            buffers = [resource.allocate(1, stream=stream)]
            started.set()
            while True:
                buffers[0] = resource.modify_allocation(buffers[0], 1)
        threading.Thread(target=work, daemon=True).start()
        started.wait()
    """,
    "a daemon thread that waits": """
        from support import delay
        buffer = resource.allocate(1, stream=stream)
        delay(stream, 0.3)
        threading.Thread(target=buffer.close, daemon=True).start()
    """,
    "in a capture": """
        stream.begin_capture()
        buffer = resource.allocate(1, stream=stream)
        buffer.fill(0, stream=stream)
    """,
    "in a capture of a blocking stream": """
        blocking = gvmm.Stream(blocking=True)
        blocking.begin_capture()
        buffer = resource.allocate(1)
    """,
    "held by a graph": """
        buffer = resource.allocate(1)
        graph = gvmm.Graph()
        buffer.retain_in_graph(graph)
        buffer.close()
    """,
    "kept for reuse": """
        keeping = VirtualMemoryResource(0, {"reuse_limit": 1 << 30})
        keeping.allocate(1, stream=stream).fill(1, stream=stream)
        keeping.allocate(1)
        other = threading.Thread(target=lambda: keeping.allocate(1, stream=stream))
        other.start()
        other.join()
        assert gvmm.stats().kept_bytes
    """,
    "on its way back": """
        from support import delay
        delay(stream, 0.3)
        resource.allocate(1, stream=stream)
        assert gvmm.stats().releases_waiting
    """,
    "exported": """
        host = VirtualMemoryResource(0, {"location_type": "host", "handle_type": None})
        view = memoryview(host.allocate(1))
        capsule = resource.allocate(1).__dlpack__()
        try:
            import numpy
            array = numpy.from_dlpack(host.allocate(1))
        except ImportError:
            pass
    """,
    "wrapped": """
        class Mine:
            def deallocate(self, ptr, size, *, stream): print("deallocate", file=sys.stderr)
        kept = Buffer.from_handle(0x1000, 16, mr=Mine())
        sys.kept = kept
    """,
    "an exception": """
        buffer = resource.allocate(1, stream=stream)
        raise SystemExit(0)
    """,
    "imported twice": """
        import importlib
        for name in [name for name in sys.modules if name.startswith("gvmm")]:
            del sys.modules[name]
        again = importlib.import_module("gvmm")
        assert again.VirtualMemoryResource is not VirtualMemoryResource
        one = resource.allocate(1, stream=stream)
        other = again.VirtualMemoryResource(0).allocate(1)
        assert one != other
        try:
            resource.modify_allocation(other, 1)
        except TypeError:
            pass
        importlib.reload(again)
    """,
    "the stream destroyed first": """
        buffer = resource.allocate(1, stream=stream.handle)
        stream.close()
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_18_alive_at_exit(name):
    result = run_python(START + textwrap.dedent(PROGRAMS[name]))
    assert_silent(result, "")


def test_warnings_as_errors_at_exit():
    program = START + 'buffer = resource.allocate(1, stream=stream)\nprint(buffer.size, sys.warnoptions)'
    result = run_python(program, "-W", "error::gvmm.CUDAWarning")
    assert_silent(result, "2097152 ['error::gvmm.CUDAWarning']\n")
    assert_silent(run_python(program, "-W", "error"), "2097152 ['error']\n")


def test_the_option_is_in_force():
    program = START + textwrap.dedent("""
        buffer = VirtualMemoryResource(0, {"release_mode": "sync"}).allocate(1, stream=stream)
        stream.begin_capture()
        del buffer
        stream.end_capture()
    """)
    result = run_python(program, "-W", "error::gvmm.CUDAWarning")
    assert result.returncode == 0 and "CUDAWarning: " in result.stderr and "capturing" in result.stderr


def test_importing_touches_no_driver():
    program = "import gvmm, sys; print('ctypes' in sys.modules, gvmm.__version__.count('.'))"
    assert_silent(run_python(program, GVMM_DRIVER="/nowhere/libcuda.so.1"), "False 2\n")


def test_no_driver_is_a_clear_error():
    program = "import gvmm\ntry: gvmm.VirtualMemoryResource(0)\nexcept gvmm.CUDAError as e: print(e.result, 'nowhere' in str(e))"
    result = run_python("import os; os.environ['GVMM_DRIVER'] = '/nowhere/libcuda.so.1'\n" + program)
    assert_silent(result, "GVMM_E_NO_DRIVER True\n")


@pytest.mark.sim
def test_the_environment_chooses_the_simulator():
    program = "import gvmm; r = gvmm.VirtualMemoryResource(1); b = r.allocate(1); print(b.device_id, gvmm.sim.census()['mapping'])"
    assert_silent(run_python(program, GVMM_SIM="devices=2"), "1 1\n")


@pytest.mark.sim
def test_a_forked_child():
    """What was made before the fork is not the child's to give back, and it says nothing about it."""
    program = START + textwrap.dedent("""
        import os
        warnings.simplefilter("error")
        buffer = resource.allocate(1, stream=stream)
        keeping = VirtualMemoryResource(0, {"reuse_limit": 1 << 30})
        keeping.allocate(1, stream=stream)
        other = keeping.allocate(1 << 22, stream=stream)
        pid = os.fork()
        if pid == 0:
            keeping.trim()
            del buffer, other, resource, keeping
            gc.collect()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        assert keeping.trim() == 1 << 21
        other.close()
        buffer.close()
        print(status, gvmm.stats().buffers)
    """)
    result = run_python(program, "-W", "ignore::DeprecationWarning")
    assert_silent(result, "0 0\n")


# ---- subinterpreters ----

SUBINTERPRETER = """
try:
    import _interpreters as interpreters          # 3.13
    def run(code, own):
        id = interpreters.create("isolated" if own else "legacy")
        failed = interpreters.run_string(id, code)
        interpreters.destroy(id)
        return failed
except ImportError:
    import _xxsubinterpreters as interpreters     # 3.10 to 3.12
    def run(code, own):
        id = interpreters.create(isolated=own)
        interpreters.run_string(id, code)
        interpreters.destroy(id)
CODE = '''
import gvmm
resource = gvmm.VirtualMemoryResource(0)
buffer = resource.allocate(1)
large = resource.modify_allocation(buffer, 1 << 23)
try:
    resource.allocate(-1)
except OverflowError:
    pass
assert gvmm.stats().buffers >= 2
import sys
sys.kept = large
'''
"""


def has_subinterpreters() -> bool:
    code = "try:\n import _interpreters\nexcept ImportError:\n import _xxsubinterpreters"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


@pytest.mark.skipif(not has_subinterpreters(), reason="this Python has no subinterpreters")
class TestSubinterpreters:
    def test_18_alive_at_the_end_of_one(self):
        """Its end is not the process's: everything goes back."""
        program = SUBINTERPRETER + textwrap.dedent("""
            import gvmm
            for own in (False, True):
                assert not run(CODE, own)
            gvmm.drain()
            print(gvmm.stats().buffers, gvmm.stats().physical_bytes)
        """)
        assert_silent(run_python(program), "0 0\n")

    def test_the_main_interpreter_goes_first(self):
        program = SUBINTERPRETER + textwrap.dedent("""
            import gvmm
            resource = gvmm.VirtualMemoryResource(0)
            mine = resource.allocate(1)
            for _ in range(3):
                assert not run(CODE, True)
            print(mine.size, gvmm.stats().buffers)
        """)
        assert_silent(run_python(program), "2097152 1\n")
