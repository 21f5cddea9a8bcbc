"""The page of a service in headless Chromium."""

import contextlib
import os
import shutil

import pytest
from http_service import run_in_thread


@contextlib.contextmanager
def open_page(service):
    """Gives the page of a service once it is ready; errors of its scripts fail the test, but for refused requests."""
    chromium, api = shutil.which("chromium"), pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if not chromium:
        pytest.skip("needs chromium, such as Debian's package of this name")
    errors, sandbox = [], ["--no-sandbox"] if os.geteuid() == 0 else []
    with run_in_thread(service) as port, api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=sandbox)
        page = browser.new_page(viewport={"width": 360, "height": 800})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"http://127.0.0.1:{port}/")
        page.wait_for_selector("body[data-ready]")
        yield page
        browser.close()
    assert [error for error in errors if "400" not in error] == []
