"""Full disks."""

import contextlib
import resource
import subprocess

import pytest


@contextlib.contextmanager
def file_size_limit(size):
    """Make writes beyond `size` bytes of a file fail, as with a quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def small_disk(folder, options):
    """Mount a tmpfs with given options on a new folder, or skip the test if this is forbidden."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting is not permitted")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
