"""Stores to test with: a server that speaks S3, and file systems that are made anew for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gguftools.io.stores import retries, store

from ...s3_server import Server, serving

SECRETS = {"AWS_ACCESS_KEY_ID": "AKIAQQQQQQQQQQQQQQQQ", "AWS_SECRET_ACCESS_KEY": "sesame-sesame-sesame"}


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def s3(s3_server, monkeypatch, tmp_path) -> Iterator[Server]:
    """The server, without faults, and an empty bucket `models`; this process's credentials are SECRETS."""
    for name, value in {**SECRETS, "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": s3_server.address}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)
    store.made_file_system.cache_clear()
    s3_server.faults()
    fs = store.file_system("s3")
    if fs.exists("models"):
        fs.rm("models", recursive=True)
    fs.mkdir("models")
    yield s3_server
    s3_server.faults()
    store.made_file_system.cache_clear()


@pytest.fixture
def memory(monkeypatch) -> Iterator[None]:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)
    store.made_file_system.cache_clear()
    fs = store.file_system("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield
    fs.store.clear()
