"""A fixture of the tests that parse the whole package."""

import gc

import pytest


@pytest.fixture(scope="module")
def parsing():
    """Parse without garbage collections, since a million nodes that stay would take three times as long."""
    gc.disable()
    yield
    gc.enable()
