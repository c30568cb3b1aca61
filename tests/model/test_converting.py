"""The first use of a record type, by many threads at once: a race that would end the process, so it runs in its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

RACE = """
import sys, threading, types
from fedsched.model.converting import convert

sys.setswitchinterval(1e-6)
source = "from __future__ import annotations\\nimport msgspec\\n"
for i in range(8):
    source += f"class R{i}(msgspec.Struct):\\n" + "".join(f"    f{j}: int | None = None\\n" for j in range(30))
    source += f"    inner: R{i - 1} | None = None\\n" if i else ""
for number in range(30):
    module = types.ModuleType(f"m{number}")
    sys.modules[module.__name__] = module
    exec(source, module.__dict__)
    barrier = threading.Barrier(6)

    def go(kind):
        barrier.wait()
        assert convert({"inner": {"f1": 3}}, kind).inner.f1 == 3

    threads = [threading.Thread(target=go, args=(kind,)) for kind in (module.R7, module.R6) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print("fine")
"""


@pytest.mark.processes
def test_threads_may_meet_a_record_type_for_the_first_time_together() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
