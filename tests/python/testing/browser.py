"""Pages in a real browser, without a window."""

import shutil
import subprocess
from pathlib import Path

import pytest


def _run(page: Path, *options: str) -> str:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("chromium is not installed")
    result = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        + ["--disable-dev-shm-usage", f"--user-data-dir={page.parent / 'profile'}"]
        + ["--enable-logging=stderr", *options, page.absolute().as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    # Scripts that fail, and files that are not there.
    errors = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
    assert not errors, errors
    return result.stdout


def open_page(page: Path) -> str:
    """Opens a page or a picture, on which something must be seen; skips without chromium.

    Returns:
        What the browser made of it, as HTML.
    """
    empty = page.parent / "empty.html"
    empty.write_text("<!doctype html>")
    for one in (page, empty):
        _run(one, "--window-size=900,700", f"--screenshot={one.with_suffix('.png')}")
    blank = empty.with_suffix(".png").stat().st_size
    assert page.with_suffix(".png").stat().st_size > 3 * blank
    return _run(page, "--dump-dom")
