"""The real fairseq commands, from training to translation."""

import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import SPLITS, USER_DIR
from warm import real

from onelayer_lottery.checkpoint.reading import load_checkpoint
from onelayer_lottery.cli import main
from onelayer_lottery.core.modules import draw_scores

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def tensors(path):
    return torch.load(path)["model"]


def assert_same_tensors(ours, theirs):
    assert list(ours) == list(theirs)
    for name in ours:
        if not name.endswith("_float_tensor"):  # fairseq leaves it as it finds it
            assert torch.equal(ours[name], theirs[name]), name


def test_every_test_sentence_is_translated_by_commands_in_new_processes(fairseq):
    fairseq.train("data-bin", "real", "--max-update", 1, start=real)
    done = fairseq.generate("data-bin", "real/checkpoint_best.pt", start=real)
    assert len(done.lines("H")) == SPLITS["test"]
    assert "leaves out the last batch" not in done.log


def test_the_log_says_what_was_planted(fairseq):
    log = fairseq.train("data-bin", "log", "--mask-keep", 0.25, "--max-update", 1).log
    assert "planted 34 masks of " in log
    assert "over 18 frozen tensors of" in log
    assert (
        "0 values trained densely | keep:0.25|seed:1|init:kaiming-uniform|fan:full"
        "|gain:q=0.5,k=0.5,v=0.5,out=0.70710678|share:layers|train:none"
    ) in log
    assert (
        "variance of residual branches at the start, for an input of variance 1" in log
    )


def test_a_checkpoint_holds_scores_and_loads_with_torchs_safety_check(trained):
    model = torch.load(trained / "checkpoint_last.pt")["model"]
    kinds = {name.rpartition(".")[2] for name in model}
    assert kinds == {"scores", "version", "_float_tensor", "mask_version"} & kinds
    assert "scores" in kinds


def test_resuming_equals_training_through_to_the_bit(fairseq):
    flags = ["--mask-train", "norm,bias"]  # with dropout, and across an epoch's end
    fairseq.train("data-bin", "through", "--max-update", 16, *flags)
    fairseq.train("data-bin", "halves", "--max-update", 8, *flags)
    resumed = fairseq.train("data-bin", "halves", "--max-update", 16, *flags)
    assert "Loaded checkpoint halves/checkpoint_last.pt" in resumed.log
    through, halves = (
        torch.load(fairseq.folder / name / "checkpoint_last.pt")
        for name in ("through", "halves")
    )
    assert_same_tensors(through["model"], halves["model"])
    optimizers = [state["last_optimizer_state"]["state"] for state in (through, halves)]
    assert len(optimizers[0]) > 30
    for key, moments in optimizers[0].items():
        assert torch.equal(moments["exp_avg"], optimizers[1][key]["exp_avg"])


def test_best_checkpoint_by_bleu_with_gradient_accumulation(fairseq):
    done = fairseq.train(
        *("data-bin", "bleu", "--update-freq", 2, "--max-epoch", 1),
        *("--max-update", 50, "--eval-bleu", "--eval-bleu-remove-bpe", "sentencepiece"),
        *("--eval-bleu-args", '{"beam": 2, "max_len_b": 12}'),
        *("--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"),
    )
    assert "best_bleu" in done.log or "| bleu " in done.log
    assert (fairseq.folder / "bleu" / "checkpoint_best.pt").is_file()


def test_options_of_the_stock_model_work_together(fairseq):
    flags = [
        *("--encoder-learned-pos", "--decoder-learned-pos"),
        *("--encoder-normalize-before", "--decoder-normalize-before"),
        *("--checkpoint-activations", "--encoder-layerdrop", 0.3),
        *("--decoder-layerdrop", 0.3, "--mask-train", "norm,bias,positions"),
        *("--mask-init", "signed-constant", "--mask-fan", "full", "--mask-keep", 0.7),
    ]
    fairseq.train("data-bin", "options", *flags)
    done = fairseq.generate("data-bin", "options/checkpoint_last.pt")
    assert len(done.lines("H")) == SPLITS["test"]


def test_all_embeddings_shared_over_a_joined_dictionary(fairseq):
    fairseq.train("joined", "shared", "--share-all-embeddings")
    model = tensors(fairseq.folder / "shared" / "checkpoint_last.pt")
    embeddings = [
        model[f"{place}.masked.scores"].data_ptr()
        for place in (
            "encoder.embed_tokens",
            "decoder.embed_tokens",
            "decoder.output_projection",
        )
    ]
    assert len(set(embeddings)) == 1
    done = fairseq.generate("joined", "shared/checkpoint_last.pt")
    assert len(done.lines("H")) == SPLITS["test"]


def test_the_moving_average_of_scores_is_kept_and_resumed(fairseq):
    flags = ["--store-ema", "--ema-decay", 0.5, "--ema-fp32"]
    fairseq.train("data-bin", "ema", *flags)
    fairseq.train("data-bin", "ema", "--max-update", 6, *flags)
    state = torch.load(fairseq.folder / "ema" / "checkpoint_last.pt")
    name = "encoder.layers.0.fc1.masked.scores"
    average = state["extra_state"]["ema"][name]
    assert average.shape == state["model"][name].shape
    assert not torch.equal(average, state["model"][name])


def test_finetuning_and_a_reset_optimizer_start_from_the_scores(fairseq, trained):
    checkpoint = trained / "checkpoint_best.pt"
    zero = ["--lr", 0.0, "--max-update", 1]
    fairseq.train("data-bin", "tuned", "--finetune-from-model", checkpoint, *zero)
    shutil.copytree(trained, fairseq.folder / "reset")
    reset = ["--reset-optimizer", "--reset-dataloader", "--reset-meters"]
    reset += ["--reset-lr-scheduler", *zero]
    fairseq.train("data-bin", "reset", "--restore-file", checkpoint, *reset)
    for folder in ("tuned", "reset"):
        after = tensors(fairseq.folder / folder / "checkpoint_last.pt")
        assert_same_tensors(after, tensors(checkpoint))


def test_ensembles_and_averages_translate(fairseq, trained):
    out = fairseq.folder / "mean.pt"
    assert main(["average", "--last", "2", str(trained), "-o", str(out)]) == 0
    both = f"{trained}/checkpoint1.pt:{out}"
    done = fairseq.generate("data-bin", both, "--remove-bpe", "sentencepiece")
    assert len(done.lines("H")) == SPLITS["test"]


def test_validate_computes_the_loss_that_training_saw(fairseq, trained):
    path = trained / "checkpoint2.pt"
    flags = ["--task", "translation", "--path", path, "--max-tokens", 1200, "--cpu"]
    flags += ["--required-batch-size-multiple", 1]
    log = fairseq.run("fairseq-validate", "data-bin", *flags).log
    loss = torch.load(path)["extra_state"]["val_loss"]
    assert f"loss {loss:.3f}"[:9] in log.replace("loss=", "loss ")


def test_sentencepiece_text_is_translated_interactively(fairseq, trained):
    lines = (fairseq.folder / "test.de").read_text("utf-8").splitlines()[:3]
    done = fairseq.run(
        *("fairseq-interactive", "data-bin", "-s", "de", "-t", "en", "--cpu"),
        *("--path", trained / "checkpoint_best.pt", "--max-len-b", 12),
        *("--bpe", "sentencepiece", "--sentencepiece-model", "spm.model"),
        stdin="".join(line + "\n" for line in lines),
    )
    assert len(done.lines("D")) == 3
    assert all("▁" not in line for line in done.lines("D"))
    assert "▁" in "".join(done.lines("S"))


def test_fastbpe_text_is_translated_interactively(fairseq):
    folder = fairseq.folder
    codes = folder / "codes"
    learn = [Path(sys.executable).parent / "subword-nmt", "learn-joint-bpe-and-vocab"]
    learn += ["--input", "train.de", "train.en", "-s", "200", "-o", "codes.nmt"]
    learn += ["--write-vocabulary", "vocab.de", "vocab.en"]
    subprocess.run(list(map(str, learn)), cwd=folder, check=True, capture_output=True)
    merges = (folder / "codes.nmt").read_text("utf-8").splitlines()[1:]
    # fastBPE's form of the same merges has a third column, their frequency.
    codes.write_text("".join(f"{merge} 1\n" for merge in merges), encoding="utf-8")
    import fastBPE

    bpe = fastBPE.fastBPE(str(codes))
    for split in SPLITS:
        for language in ("de", "en"):
            lines = (folder / f"{split}.{language}").read_text("utf-8").splitlines()
            text = "".join(line + "\n" for line in bpe.apply(lines))
            (folder / f"{split}.fast.{language}").write_text(text, encoding="utf-8")
    fairseq.run(
        *("fairseq-preprocess", "-s", "de", "-t", "en", "--destdir", "fast"),
        *("--trainpref", "train.fast", "--validpref", "valid.fast"),
        user_dir=False,
    )
    fairseq.train("fast", "fast-trained")
    done = fairseq.run(
        *("fairseq-interactive", "fast", "-s", "de", "-t", "en", "--cpu"),
        *("--path", "fast-trained/checkpoint_last.pt", "--max-len-b", 12),
        *("--bpe", "fastbpe", "--bpe-codes", "codes"),
        stdin="der hund singt .\n",
    )
    assert "@@" in "".join(done.lines("S"))
    assert len(done.lines("D")) == 1
    assert "@@" not in done.lines("D")[0]


HYDRA = """
common: {cpu: true, user_dir: USER_DIR, log_format: simple}
task: {_name: translation, data: DATA, source_lang: de, target_lang: en}
model:
  _name: transformer_onelayer_random_tiny
  mask_keep: 0.3
  encoder_embed_dim: 32
  decoder_embed_dim: 32
criterion: {_name: label_smoothed_cross_entropy, label_smoothing: 0.1}
dataset: {max_tokens: 1200, required_batch_size_multiple: 1, num_workers: 0}
optimization: {max_update: 3, lr: [0.001]}
optimizer: {_name: adam, adam_betas: "(0.9, 0.98)"}
lr_scheduler: {_name: inverse_sqrt, warmup_updates: 10}
checkpoint: {save_dir: SAVE}
"""


def hydra_train(fairseq, text, **options):
    for word, value in {
        "USER_DIR": USER_DIR,
        "DATA": fairseq.folder / "data-bin",
        "SAVE": fairseq.folder / "hydra",
    }.items():
        text = text.replace(word, str(value))
    (fairseq.folder / "ticket.yaml").write_text(text)
    return fairseq.run(
        *("fairseq-hydra-train", "--config-dir", fairseq.folder),
        *("--config-name", "ticket"),
        user_dir=False,
        **options,
    )


def test_hydra_trains_from_a_yaml_file(fairseq):
    hydra_train(fairseq, HYDRA)
    done = fairseq.generate("data-bin", "hydra/checkpoint_last.pt")
    assert len(done.lines("H")) == SPLITS["test"]
    assert "keep:0.3|" in done.log


def test_scores_have_a_learning_rate_of_their_own(fairseq):
    """By fairseq's composite optimizer; what does not move shows whose rate is 0."""
    group = "{lr_float: LR, optimizer: {_name: adam}, lr_scheduler: {_name: fixed}}"
    text = HYDRA.replace("mask_keep: 0.3", "mask_keep: 0.3\n  mask_train: norm")
    text = text.replace("SAVE", "SAVE4").partition("optimizer: {_name")[0]
    text += f"""
optimizer:
  _name: composite
  groups:
    scores: {group.replace("LR", "0.001")}
    default: {group.replace("LR", "0.0")}
lr_scheduler: {{_name: pass_through}}
checkpoint: {{save_dir: {fairseq.folder / "hydra4"}}}
"""
    hydra_train(fairseq, text)
    state = load_checkpoint(fairseq.folder / "hydra4" / "checkpoint_last.pt")["model"]
    name = "encoder.layers.0.fc1.masked.scores"
    first = draw_scores(1, name[: -len(".masked.scores")], tuple(state[name].shape))
    assert not torch.equal(state[name], first)
    norm = state["encoder.layers.0.final_layer_norm.weight"]
    assert torch.equal(norm, torch.ones_like(norm))


def test_hydra_ends_with_a_sentence_on_a_bad_flag(fairseq):
    text = HYDRA.replace("mask_keep: 0.3", "mask_init: he").replace("SAVE", "SAVE2")
    done = hydra_train(fairseq, text, status=None)
    assert done.status != 0
    assert "--mask-init is he; give one of kaiming-uniform" in done.log
    assert "Traceback" not in done.log


def train_on_two(fairseq, *flags):
    """Train on two processes that share the work, and return both logs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [
        *("--distributed-world-size", 2, "--distributed-no-spawn"),
        *("--distributed-init-method", f"tcp://127.0.0.1:{port}"),
        *("--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp", *flags),
    ]
    with ThreadPoolExecutor() as pool:
        ranks = [
            pool.submit(
                *(fairseq.train, "data-bin", "ddp", *flags),
                *("--distributed-rank", rank),
            )
            for rank in range(2)
        ]
        return [rank.result().log for rank in ranks]


def test_two_processes_train_one_model_and_resume_it(fairseq):
    logs = train_on_two(fairseq)
    assert any("num_updates: 4 >= max_update: 4" in log for log in logs)
    logs = train_on_two(fairseq, "--max-update", 6)
    assert any("Loaded checkpoint ddp/checkpoint_last.pt" in log for log in logs)
    assert any("num_updates: 6 >= max_update: 6" in log for log in logs)
    done = fairseq.generate("data-bin", "ddp/checkpoint_last.pt")
    assert len(done.lines("H")) == SPLITS["test"]


@pytest.mark.parametrize(
    ("arch", "dimension", "layers", "embed"),
    [("small", 32, 2, "masked"), ("wide", 48, 2, "masked"), ("deep", 32, 4, "dense")],
)
def test_embeddings_are_imported_and_their_file_is_not_needed_again(
    fairseq, arch, dimension, layers, embed
):
    width = ["--encoder-embed-dim", dimension, "--decoder-embed-dim", dimension]
    source = fairseq.folder / f"source-{arch}" / "checkpoint_last.pt"
    flags = ["--arch", "transformer_iwslt_de_en", "--max-update", 2, *width]
    if arch == "deep":  # the others do not say; their data do
        flags += ["--source-lang", "de", "--target-lang", "en"]
    fairseq.train("data-bin", source.parent, *flags, user_dir=False)
    save = f"imported-{arch}"
    flags = ["--encoder-embed-path", source, "--decoder-embed-path", source]
    flags += ["--arch", f"transformer_onelayer_random_{arch}", *width]
    flags += ["--encoder-layers", layers, "--decoder-layers", layers]
    flags += ["--mask-embed", embed]
    log = fairseq.train("data-bin", save, "--max-update", 2, *flags).log
    assert "symbols, 0 missing" in log
    source.unlink()
    resumed = fairseq.train("data-bin", save, "--max-update", 4, *flags)
    assert f"Loaded checkpoint {save}/checkpoint_last.pt" in resumed.log
    done = fairseq.generate("data-bin", f"{save}/checkpoint_last.pt")
    assert len(done.lines("H")) == SPLITS["test"]
    ticket, baked = (fairseq.folder / f"{arch}.{kind}" for kind in ("ticket", "pt"))
    path = str(fairseq.folder / save / "checkpoint_last.pt")
    data = ["--data", str(fairseq.folder / "data-bin")]
    assert main(["ticket", path, str(ticket), *data]) == 0
    assert main(["bake", str(ticket), str(baked)]) == 0
    stock = fairseq.generate("data-bin", baked, user_dir=False)
    tokens = [[line.split("\t")[2] for line in d.lines("H")] for d in (done, stock)]
    assert tokens[0] == tokens[1]
    fresh = fairseq.train("data-bin", f"{save}-fresh", *flags, status=None)
    assert fresh.status != 0
    assert f"--encoder-embed-path: {source} does not exist" in fresh.log
    assert "Traceback" not in fresh.log


def drops_data() -> bool:
    from onelayer_lottery.compat import _drops_partial_batches

    return _drops_partial_batches()


@pytest.mark.skipif(not drops_data(), reason="this fairseq does not drop data")
def test_data_that_fairseq_drops_is_warned_of(fairseq, trained):
    multiple = ["--required-batch-size-multiple", 8]
    warning = "pass --required-batch-size-multiple 1 to use all sentences"
    path = trained / "checkpoint_best.pt"
    assert warning in fairseq.train("data-bin", "dropped", *multiple).log
    generated = fairseq.generate("data-bin", path, *multiple)
    assert warning in generated.log
    assert len(generated.lines("H")) < SPLITS["test"]  # what it warns of is true
    validate = ["--task", "translation", "--path", path, "--max-tokens", 1200, "--cpu"]
    validate += multiple
    assert warning in fairseq.run("fairseq-validate", "data-bin", *validate).log
    yaml = HYDRA.replace("required_batch_size_multiple: 1", "batch_size: 8")
    assert warning in hydra_train(fairseq, yaml.replace("SAVE", "SAVE3")).log


BAD = {
    "keep 0": (["--mask-keep", 0], "--mask-keep is 0.0: no weight would be kept"),
    "keep 1.5": (["--mask-keep", 1.5], "--mask-keep is 1.5; give a fraction in (0, 1]"),
    "keep nan": (["--mask-keep", "nan"], "--mask-keep is nan; give a fraction"),
    "keep text": (["--mask-keep", "half"], "--mask-keep: invalid float value: 'half'"),
    "init": (["--mask-init", "he"], "--mask-init: invalid choice: 'he'"),
    "another seed": (["--mask-seed", 2], "it was trained with --mask-seed 1, this"),
    "another keep": (["--mask-keep", 0.4], "it was trained with --mask-keep 0.5, this"),
    "another architecture": (
        ["--arch", "transformer_random_tiny"],
        "it was trained with --mask-share layers, this model has --mask-share none",
    ),
    "another width": (
        ["--encoder-ffn-embed-dim", 64],
        "encoder.layers.0.fc1.masked.scores ((48, 32) there, (64, 32) here)",
    ),
    "separate dictionaries": (
        ["--share-all-embeddings"],
        "--share-all-embeddings requires a joined dictionary",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_run_ends_with_a_sentence_and_overwrites_nothing(case, fairseq, trained):
    flags, sentence = BAD[case]
    before = {path: path.read_bytes() for path in trained.iterdir()}
    done = fairseq.train("data-bin", "trained", *flags, status=None)
    assert done.status != 0
    assert sentence in done.log
    assert "Traceback" not in done.log
    assert {path: path.read_bytes() for path in trained.iterdir()} == before


def test_a_dense_checkpoint_is_refused_in_place_of_a_masked_one(fairseq):
    fairseq.train("data-bin", "dense", "--arch", "transformer", user_dir=False)
    path = fairseq.folder / "dense" / "checkpoint_last.pt"
    for flag in ("--restore-file", "--finetune-from-model"):
        done = fairseq.train("data-bin", "refused", flag, path, status=None)
        assert done.status != 0
        assert "it has no masks; it is of a dense model" in done.log
        assert "Traceback" not in done.log
    assert not list((fairseq.folder / "refused").glob("*.pt"))
