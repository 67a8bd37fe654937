"""The same bits with every Python, NumPy and machine.

These tests need NumPy and pytest only, so that any Python can run them:
``python3.8 -m pytest --noconftest tests/test_portability.py``.
"""

from pathlib import Path

import pytest

from onelayer_lottery.frozen.weights import digest, frozen_weight
from onelayer_lottery.ticket import read_ticket, write_ticket

TICKETS = sorted((Path(__file__).parent / "golden").rglob("*.ticket"))

# Golden: the first digits of a digest may change only together with STREAM_VERSION.
FROZEN = [
    (0, "encoder.layers.*.fc1", (8, 8), "kaiming-uniform", {}, "d814c1eb3a177823"),
    (1, "encoder.layers.*.fc1", (8, 8), "kaiming-uniform", {}, "acc2279dce00cbde"),
    (1, "encoder.layers.*.fc2", (8, 8), "kaiming-uniform", {}, "a55bbb24cd0228e2"),
    (
        1,
        "encoder.layers.*.self_attn.q_proj",
        (512, 512),
        "kaiming-uniform",
        {},
        "a05943325853ef8c",
    ),
    (
        1,
        "encoder.layers.*.self_attn.q_proj",
        (512, 512),
        "kaiming-uniform",
        {"keep": 0.5, "fan": "kept"},
        "3821f5ec3d13c300",
    ),
    (
        1,
        "encoder.layers.*.self_attn.q_proj",
        (512, 512),
        "kaiming-uniform",
        {"keep": 0.5, "fan": "full"},
        "a05943325853ef8c",
    ),
    (
        2,
        "decoder.layers.*.fc1",
        (2048, 512),
        "kaiming-uniform",
        {"keep": 0.3, "gain": 0.5},
        "0103f71a33c6f25d",
    ),
    (
        2147483648,
        "decoder.layers.*.encoder_attn.k_proj",
        (33, 65),
        "kaiming-uniform",
        {},
        "9d9f76926ce8add7",
    ),
    (
        9223372036854775807,
        "decoder.layers.*.encoder_attn.k_proj",
        (1, 1),
        "kaiming-uniform",
        {},
        "4721f08895d1e805",
    ),
    (3, "encoder.layers.*.fc1", (1024, 256), "xavier-uniform", {}, "f33350fdeca83489"),
    (
        3,
        "decoder.layers.*.fc2",
        (255, 257),
        "xavier-uniform",
        {"gain": 0.70710678},
        "813c0870a1c5608b",
    ),
    (
        4,
        "encoder.embed_tokens",
        (1000, 64),
        "xavier-uniform",
        {"padding": 1},
        "8af423cd6334bdf6",
    ),
    (5, "encoder.layers.*.fc1", (1024, 256), "kaiming-normal", {}, "9d17162492832772"),
    (
        5,
        "decoder.layers.*.fc2",
        (256, 1031),
        "kaiming-normal",
        {"keep": 0.1, "fan": "kept"},
        "38b3844063890f43",
    ),
    (
        6,
        "encoder.embed_tokens",
        (65537, 3),
        "kaiming-normal",
        {"padding": 1},
        "db7ab407a0407074",
    ),
    (7, "decoder.output_projection", (999, 128), "normal-0.02", {}, "8206612310a56ff2"),
    (
        7,
        "encoder.embed_tokens",
        (999, 128),
        "normal-0.02",
        {"padding": 1, "gain": 2.0},
        "ea732b411dd200ce",
    ),
    (
        8,
        "encoder.layers.*.self_attn.v_proj",
        (300, 500),
        "signed-constant",
        {},
        "eb705df8542ee877",
    ),
    (
        8,
        "encoder.layers.*.self_attn.out_proj",
        (7, 9),
        "signed-constant",
        {"keep": 0.9, "fan": "kept"},
        "64ccc6d6d8c26906",
    ),
    (-1, "a role of one's own", (64, 64), "kaiming-normal", {}, "b08dc138616d153e"),
]


@pytest.mark.parametrize(("seed", "role", "shape", "init", "options", "golden"), FROZEN)
def test_frozen_weights_have_the_same_bits_everywhere(
    seed, role, shape, init, options, golden
):
    weight = frozen_weight(seed, role, shape=shape, init=init, **options)
    assert digest(weight)[:16] == golden


@pytest.mark.parametrize("path", TICKETS, ids=lambda path: path.stem)
def test_a_ticket_draws_the_weights_that_it_was_made_of(path):
    ticket = read_ticket(path)
    for role, frozen in ticket.frozen.items():
        if frozen.values is None:  # not imported
            weight = frozen_weight(
                *(ticket.seed, role),
                shape=frozen.shape,
                init=ticket.init,
                keep=ticket.keep,
                fan=ticket.fan,
                gain=frozen.gain,
                padding=frozen.padding,
            )
            assert digest(weight) == frozen.digest, role


@pytest.mark.parametrize("path", TICKETS, ids=lambda path: path.stem)
def test_a_ticket_is_written_again_with_the_same_bytes(path, tmp_path):
    write_ticket(read_ticket(path), tmp_path / "again.ticket")
    assert (tmp_path / "again.ticket").read_bytes() == path.read_bytes()
