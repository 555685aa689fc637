import mmap
import secrets
from pathlib import Path

import pytest

from embodied_env.processes.child_process import remove_orphaned_segments

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - not a temporary file: where segments are

pytestmark = pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="segments are files only on Linux")


@pytest.fixture
def port():
    """A port without an owner that this process keeps open."""
    file = SHARED_MEMORY / f"fastrtps_port{secrets.token_hex(8)}"
    file.write_bytes(bytes(mmap.PAGESIZE))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        yield file, mapped
    file.unlink(missing_ok=True)


def test_port_open_in_a_living_process_is_kept(port):
    file, _ = port
    assert file.name not in remove_orphaned_segments([file.name])
    assert file.exists()


def test_port_is_removed_once_closed_everywhere(port):
    file, mapped = port
    remove_orphaned_segments([file.name])
    mapped.close()
    assert file.name in remove_orphaned_segments(())
    assert not file.exists()
