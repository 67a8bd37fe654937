"""Presets: the sizes of frozen weights, and that learning starts with each."""

import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT
from stock import build, build_roberta, build_tiny, translation_task

from onelayer_lottery.frozen.gains import gain_of, gains_text, parse_gains
from onelayer_lottery.identity import signature_of
from onelayer_lottery.monitoring.branches import residual_branches
from onelayer_lottery.monitoring.progress import Progress, word_entropy
from onelayer_lottery.planting.contents import masked_weights
from onelayer_lottery.planting.presets import PRESETS

SHAPES = {
    128: "transformer_onelayer_random_tiny",
    512: "transformer_onelayer_random_small",
}


def deviation(weight) -> float:
    values = weight.frozen.weight
    return values[values.abs().sum(1) > 0].std().item()  # without the padding row


# The paper's released code, std of each kind at width 512 and 128.
RELEASED = {
    512: dict(embed=0.0625, q=0.03125, k=0.03125, v=0.03125, out=0.0442, fc1=0.0625),
    128: dict(embed=0.1250, q=0.0625, k=0.0625, v=0.0625, out=0.0884, fc1=0.1250),
}
RELEASED[512]["fc2"], RELEASED[128]["fc2"] = 0.0442, 0.0884


@pytest.mark.parametrize("keep", [0.5, 0.9])
@pytest.mark.parametrize("width", SHAPES)
def test_the_paper_has_the_sizes_of_its_released_code(width, keep):
    task = translation_task(600, 500)
    seen = set()
    model = build(SHAPES[width], task, mask_keep=keep)
    for name, weight in masked_weights(model):
        last = name.rpartition(".")[2]
        kind = "embed" if last == "embed_tokens" else last.replace("_proj", "")
        seen.add(kind)
        assert deviation(weight) == pytest.approx(RELEASED[width][kind], rel=0.02), name
    assert seen == set(RELEASED[width])


def test_the_paper_text_is_larger_by_keep():
    task = translation_task(600, 500)
    flags = {"mask_preset": "paper-text", "mask_keep": 0.25}
    model = build(SHAPES[128], task, **flags)
    for name, weight in masked_weights(model):
        inputs = weight.frozen.weight.shape[1]
        expected = math.sqrt(2 / inputs) * 2
        assert deviation(weight) == pytest.approx(expected, rel=0.02), name


def test_between_stacks_of_two_widths_the_paper_draws_as_xavier_says():
    model = build_tiny(encoder_embed_dim=128, decoder_embed_dim=256)
    attention = model.decoder.layers[0].encoder_attn
    for layer, outputs, inputs in (
        (attention.q_proj, 256, 256),
        (attention.k_proj, 256, 128),
        (attention.v_proj, 256, 128),
    ):
        expected = math.sqrt(2 / (inputs + outputs))
        assert deviation(layer.masked) == pytest.approx(expected, rel=0.02)
    own = model.decoder.layers[0].self_attn.q_proj
    assert deviation(own.masked) == pytest.approx(math.sqrt(1 / 512), rel=0.02)


def test_roberta_has_the_sizes_of_the_released_code():
    model = build_roberta(encoder_embed_dim=128, encoder_ffn_embed_dim=256)
    for name, weight in masked_weights(model):
        assert deviation(weight) == pytest.approx(0.02, rel=0.04), name
    trained = [name for name, p in model.named_parameters() if "scores" not in name]
    assert {name.partition(".")[0] for name in trained} == {
        "encoder",
        "classification_heads",
    }
    assert "encoder.sentence_encoder.embed_positions.weight" in trained


@pytest.mark.parametrize("keep", [0.5, 0.9, 1.0])
def test_imported_embeddings_are_multiplied_as_in_the_released_code(keep, tmp_path):
    vectors = np.random.default_rng(1).normal(size=(26, 16))
    lines = [f"w{n} " + " ".join(map(str, v)) for n, v in enumerate(vectors)]
    (tmp_path / "vectors.txt").write_text("\n".join(lines) + "\n")
    factors = {
        preset: build_tiny(
            task=translation_task(30, 30),
            mask_keep=keep,
            mask_preset=preset,
            embed_missing=0.5,
            encoder_embed_path=str(tmp_path / "vectors.txt"),
        )
        .encoder.embed_tokens.masked.frozen.weight[4:]
        .numpy()
        / vectors
        for preset in ("paper", "paper-text")
    }
    released = (1 - keep) ** -0.5 if keep < 1 else 1.0
    np.testing.assert_allclose(factors["paper"], released, rtol=1e-5)
    np.testing.assert_allclose(factors["paper-text"], keep**-0.5, rtol=1e-5)


def test_best_shrinks_branches_with_depth_and_not_queries_and_keys():
    shallow, deep = (
        build_tiny(mask_preset="best", encoder_layers=n, decoder_layers=n)
        for n in (3, 12)
    )
    for (name, ours), (_, theirs) in zip(masked_weights(shallow), masked_weights(deep)):
        if ".layers.0.fc1" in name:
            ratio = theirs.frozen.weight.abs().max() / ours.frozen.weight.abs().max()
            assert ratio == pytest.approx(0.5, rel=1e-3)
    assert "q=0.5,k=0.5,v=0.25,out=0.25,fc1=0.25,fc2=0.25" in (
        signature_of(vars(deep.mask_config))
    )


def test_scores_grow_with_width_in_best_alone():
    for preset, bound in (("paper", 1 / math.sqrt(32)), ("best", 32 / 128**1.5)):
        model = build_tiny(mask_preset=preset, decoder_ffn_embed_dim=32)
        scores = model.decoder.layers[0].fc2.masked.scores
        assert scores.abs().max().item() == pytest.approx(bound, rel=0.02)
        largest = model.decoder.embed_tokens.masked.scores.abs().max().item()
        fixed = 1 / math.sqrt(512 if preset == "best" else 16)
        assert largest == pytest.approx(fixed, rel=0.02)


# The flag.


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1.0"),
        ("0.50", "0.5"),
        (0.35, "0.35"),
        ("out=0.7,q=0.5", "q=0.5,out=0.7"),
        ("cross-k=2,embed=1", "cross-k=2.0,embed=1.0"),
    ],
)
def test_the_same_sizes_are_written_in_one_way(value, text):
    assert gains_text(value) == text
    assert gains_text(text) == text


def test_attention_to_the_encoder_follows_unless_it_is_named():
    name = "decoder.layers.0.encoder_attn.k_proj"
    assert gain_of(name, "k=0.5") == 0.5
    assert gain_of(name, "k=0.5,cross-k=0.25") == 0.25
    assert gain_of(name, "v=0.5") == 1.0
    assert gain_of("decoder.embed_tokens", 0.5) == 1.0
    assert gain_of("decoder.embed_tokens", "embed=0.5") == 0.5


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("x=1", "has 'x=1'; the kinds are q, k, v, out, fc1, fc2, cross-q"),
        ("q=1,q=2", "has q twice"),
        ("q", "is q; give a number above 0"),
        ("q=", "has q ; give a number above 0"),
        ("q=0", "has q 0; give a number above 0"),
        ("q=1,", "has ''; the kinds are"),
        ("nan", "is nan; give a number above 0"),
        ("inf", "is inf; give a number above 0"),
        ("", "is ; give a number above 0"),
    ],
)
def test_sizes_that_make_no_sense_are_one_sentence(value, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        parse_gains(value)
    with pytest.raises(SystemExit, match=re.escape(f"--mask-gain {sentence}")):
        build_tiny(mask_gain=value)


# What the log says.


@pytest.mark.parametrize(
    ("preset", "attention", "feed_forward"),
    [("paper", 0.125, 0.5), ("paper-text", 4, 2), ("best", 0.25, 0.125)],
)
def test_the_log_says_what_branches_add_to_the_residual(
    preset, attention, feed_forward, caplog
):
    flags = {"encoder_layers": 3, "decoder_layers": 3, "mask_preset": preset}
    sizes = {"encoder_embed_dim": 128, "decoder_embed_dim": 128}
    with caplog.at_level("INFO"):
        model = build_tiny(**flags, **sizes)
    found = residual_branches(model)
    assert found["encoder self-attention"] == pytest.approx(attention, rel=0.05)
    assert found["decoder attention to the encoder"] == pytest.approx(
        attention, rel=0.05
    )
    assert found["decoder feed-forward"] == pytest.approx(feed_forward, rel=0.15)
    assert "variance of residual branches at the start, for an input of variance 1" in (
        caplog.text
    )
    warned = "nothing was learned above 1.5; lower --mask-gain" in caplog.text
    assert warned == (preset == "paper-text")


def test_masked_branches_multiply_a_variance_as_it_says():
    """Measured on random input, before attention averages."""
    model = build_tiny(encoder_embed_dim=128, encoder_ffn_embed_dim=256)
    layer = model.encoder.layers[0]
    x = torch.randn(4000, 128)
    attention = layer.self_attn.out_proj(layer.self_attn.v_proj(x))
    ffn = layer.fc2(layer.fc1(x).relu())
    found = residual_branches(model)
    for branch, values in (("self-attention", attention), ("feed-forward", ffn)):
        second = values.pow(2).mean().item()
        assert found[f"encoder {branch}"] == pytest.approx(second, rel=0.15)


def test_a_loss_of_word_frequencies_is_told_once():
    entropy = word_entropy([1, 1, 2, 0])
    assert entropy == 1.5
    progress = Progress(entropy, max_update=1000)
    assert not progress.is_due(249)
    assert progress.is_due(250)
    said = progress.of_loss(1.4, 250)
    assert said.startswith("after 250 updates the loss is 1.40 bits, and word freq")
    assert not progress.is_due(251)
    assert Progress(entropy, max_update=1000).of_loss(1.2, 250) is None
    assert not Progress(None, max_update=0).is_due(5000)


def test_a_flip_rate_that_explodes_is_told_once():
    progress = Progress(None, max_update=0)
    assert progress.of_flips(0.02, 100) is None
    assert progress.of_flips(0.25, 200).startswith(
        "update 200 flipped 25.0% of all mask"
    )
    assert progress.of_flips(0.25, 300) is None


# Learning.


@pytest.fixture(scope="module")
def frequencies(fairseq):
    """Bits of a model that knows nothing but how frequent each symbol is."""
    counts = {}
    for line in (fairseq.folder / "train.spm.en").read_text("utf-8").splitlines():
        for symbol in [*line.split(), "</s>"]:
            counts[symbol] = counts.get(symbol, 0) + 1
    total = sum(counts.values())
    return -sum(n / total * math.log2(n / total) for n in counts.values())


def test_updates_do_far_more_to_large_models_without_the_rule(fairseq):
    script = ROOT / "examples" / "learning" / "updates.py"
    words = [sys.executable, script, fairseq.folder / "data-bin", "--updates", "2"]
    words += ["--widths", "32", "256", "--depths", "2", "8", "--sentences", "12"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    cells = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    rows = {
        row[0]: [float(cell) for cell in row[1:]] for row in cells if "0." in row[-1]
    }
    layers = slice(1, 4)  # v and out, fc1, fc2

    def growth(scores: str) -> float:
        narrow, wide = (rows[f"--mask-scores {scores}, width {w}"] for w in (32, 256))
        return sum(wide[layers]) / sum(narrow[layers])

    assert growth("fan-in") > 3 * growth("width") > 3
    one_gain, by_depth = (rows[r] for r in ("--mask-gain 0.5", "gains by depth"))
    assert by_depth[1] / by_depth[0] < one_gain[1] / one_gain[0]


LEARNING = [name for name in PRESETS if name not in ("paper-text", "best-from-dense")]


@pytest.mark.parametrize("preset", LEARNING)
def test_learning_starts_with_every_preset(fairseq, frequencies, preset, tmp_path):
    """paper-text is kept to repeat the paper's words; its help says that it fails."""
    done = fairseq.train(
        *("data-bin", tmp_path, "--mask-preset", preset, "--lr", 3e-3, "--dropout", 0),
        *("--encoder-embed-dim", 64, "--decoder-embed-dim", 64),
        *("--encoder-ffn-embed-dim", 128, "--decoder-ffn-embed-dim", 128),
        *("--max-update", 200, "--no-save", "--log-interval", 100),
        *("--lr-scheduler", "polynomial_decay", "--total-num-update", 200),
        *("--warmup-updates", 40, "--max-tokens", 600),
    )
    assert "nothing is learned" not in done.log
    losses = re.findall(r"valid on 'valid' subset.*?nll_loss ([\d.]+)", done.log)
    assert float(losses[-1]) < frequencies - 1.5, (losses, frequencies)


def test_a_training_that_learns_nothing_says_so(fairseq, tmp_path):
    done = fairseq.train(
        *("data-bin", tmp_path, "--mask-preset", "paper-text", "--lr", 1e-9),
        *("--max-update", 205, "--max-tokens", 200, "--no-save"),
        *("--disable-validation", "--log-interval", 7),
    )
    assert done.log.count("word frequencies alone give") == 1
    assert "adds a variance of 4" in done.log
