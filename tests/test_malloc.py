"""The settings of glibc's allocator: when they are changed, and when they are not."""

import ctypes
import sys
from types import SimpleNamespace

import pytest
from conftest import ROOT

from onelayer_lottery.core.malloc import OPT_OUT, tune_malloc

sys.path.insert(0, str(ROOT / "benchmarks"))

from models import batch, build_trainer
from rows import QUICK


@pytest.fixture
def settings(monkeypatch):
    """What glibc is told, without telling it."""
    told = []
    library = SimpleNamespace(mallopt=lambda name, value: told.append((name, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(sys, "platform", "linux")
    return told


def test_long_lived_blocks_get_pages_of_their_own(settings):
    tune_malloc(long_lived=True)
    tune_malloc(long_lived=False)
    mmap_thresholds = [value for name, value in settings if name == -3]
    assert mmap_thresholds == [64 * 1024, 32 * 1024 * 1024]


@pytest.mark.parametrize(
    ("name", "value"), [(OPT_OUT, "0"), ("MALLOC_MMAP_THRESHOLD_", "65536")]
)
def test_the_allocator_is_left_alone_on_request(settings, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    tune_malloc(long_lived=True)
    assert settings == []


def test_a_training_changes_settings_in_its_first_two_updates_only(monkeypatch):
    calls = []
    monkeypatch.setattr(
        "onelayer_lottery.models.planted.tune_malloc",
        lambda *, long_lived: calls.append(long_lived),
    )
    trainer = build_trainer("ours", QUICK.size)
    assert calls == []
    for _ in range(4):
        trainer.train_step([batch(64, QUICK.size)] * 2)
    assert calls == [True, False]
