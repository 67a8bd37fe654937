"""Flags: defaults, and one clear sentence for every bad one."""

from argparse import ArgumentParser, Namespace

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY
from omegaconf import OmegaConf
from stock import build_tiny

from onelayer_lottery.identity import identity_of, signature_of
from onelayer_lottery.planting.config import MaskConfig, add_mask_args
from onelayer_lottery.planting.problems import problems


def sentence(**flags) -> str:
    config = MaskConfig.from_namespace(Namespace(**flags))
    return "\n".join(problems(config, Namespace(**flags)))


BAD = {
    "keep 0": (
        {"mask_keep": 0.0},
        "--mask-keep is 0.0: no weight would be kept; give a fraction in (0, 1]",
    ),
    "keep above 1": (
        {"mask_keep": 1.5},
        "--mask-keep is 1.5; give a fraction in (0, 1]",
    ),
    "keep negative": ({"mask_keep": -0.1}, "--mask-keep is -0.1; give a fraction"),
    "keep nan": ({"mask_keep": float("nan")}, "--mask-keep is nan; give a fraction"),
    "seed": ({"mask_seed": -1}, "--mask-seed is -1; give a whole number from 0 on"),
    "gain": ({"mask_gain": 0.0}, "--mask-gain is 0.0; give a number above 0"),
    "init": (
        {"mask_init": "he"},
        "--mask-init is he; give one of kaiming-uniform, xavier-uniform,"
        " kaiming-normal, signed-constant",
    ),
    "fan": ({"mask_fan": "out"}, "--mask-fan is out; give one of kept, full"),
    "share": ({"mask_share": "all"}, "--mask-share is all; give one of layers, none"),
    "train": (
        {"mask_train": "norms"},
        "--mask-train has 'norms'; give none, or a comma-separated list of norm, bias,"
        " positions, embed",
    ),
    "train and none": (
        {"mask_train": "none,norm"},
        "--mask-train is none,norm; give none or a list, not both",
    ),
    "positions without positions": (
        {"mask_train": "positions"},
        "--mask-train positions has nothing to train",
    ),
    "pruned layers": (
        {"mask_share": "none", "encoder_layers_to_keep": "0,2"},
        "--encoder-layers-to-keep and --decoder-layers-to-keep renumber the layers",
    ),
    "quant noise": (
        {"quant_noise_pq": 0.1},
        "--quant-noise-pq 0.1 overwrites weights",
    ),
    "scalar quant noise": (
        {"quant_noise_scalar": 0.1},
        "--quant-noise-scalar 0.1 overwrites weights",
    ),
    "adaptive softmax": (
        {"adaptive_softmax_cutoff": "10,20"},
        "--adaptive-softmax-cutoff 10,20 has projections that cannot be masked",
    ),
    "adaptive input": ({"adaptive_input": True}, "--adaptive-input has embeddings"),
    "base layers": ({"base_layers": 1}, "--base-layers 1 adds layers"),
    "fsdp": (
        {"ddp_backend": "fully_sharded"},
        "--ddp-backend fully_sharded splits the weights that layers share: use c10d",
    ),
    "torchscript": ({"export": True}, "--export prepares for TorchScript"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_flag_is_named_with_what_to_do(case):
    flags, expected = BAD[case]
    assert sentence(**flags).startswith(expected)
    assert "\n" not in sentence(**flags)


def test_good_flags_have_no_problem():
    assert sentence() == ""
    assert sentence(mask_train="norm,bias", mask_keep=1.0) == ""
    assert sentence(mask_train="positions", decoder_learned_pos=True) == ""
    assert sentence(encoder_layers_to_keep="0,2") == ""


def test_all_problems_are_reported_together_before_the_model_is_built():
    with pytest.raises(SystemExit) as stop:
        build_tiny(mask_keep=0.0, mask_train="all", adaptive_input=True)
    lines = str(stop.value).splitlines()
    assert [line.split()[0] for line in lines] == [
        "--mask-keep",
        "--mask-train",
        "--adaptive-input",
    ]


def test_the_command_line_knows_every_flag_and_refuses_unknown_choices(capsys):
    parser = ArgumentParser()
    add_mask_args(parser)
    given = ["--mask-keep", "0.3", "--mask-init", "signed-constant"]
    args = parser.parse_args(given)
    assert (args.mask_keep, args.mask_init) == (0.3, "signed-constant")
    with pytest.raises(SystemExit):
        parser.parse_args(["--mask-init", "he"])
    assert "--mask-init: invalid choice: 'he'" in capsys.readouterr().err
    help_text = parser.format_help()
    for flag in ("keep", "seed", "init", "fan", "gain", "share", "train"):
        assert f"--mask-{flag}" in help_text
    assert "(default: 0.5)" in help_text


@pytest.mark.parametrize("make", [lambda: Namespace(), lambda: OmegaConf.create({})])
def test_an_architecture_fills_in_what_was_not_given(make):
    args = make()
    args.mask_keep = 0.3
    ARCH_CONFIG_REGISTRY["transformer_random_small"](args)
    assert (args.mask_keep, args.mask_share, args.mask_seed) == (0.3, "none", 1)
    assert (args.encoder_embed_dim, args.decoder_layers) == (512, 6)
    assert args.share_decoder_input_output_embed is True


def test_numbers_of_a_yaml_file_mean_those_of_the_command_line():
    yaml, command_line = MaskConfig(mask_keep=1), MaskConfig(mask_keep=1.0)
    assert identity_of(vars(yaml)) == identity_of(vars(command_line))
    listed = MaskConfig(mask_train=["norm", "bias"])
    assert listed.trained == {"norm", "bias"}
    assert problems(listed, Namespace()) == []


def test_a_tensor_of_which_nothing_would_be_kept_is_named():
    with pytest.raises(SystemExit) as stop:
        build_tiny(mask_keep=1e-4)
    assert "--mask-keep 0.0001 keeps none of the 640 weights of encoder.embed" in str(
        stop.value
    )


def test_the_signature_names_what_makes_the_model():
    config = MaskConfig(mask_keep=0.3, mask_seed=7, mask_train="norm")
    assert signature_of(vars(config)) == (
        "keep:0.3|seed:7|init:kaiming-uniform|fan:full"
        "|gain:q=0.5,k=0.5,v=0.5,out=0.70710678|share:layers|train:norm"
    )
