"""Loading state dicts, also of other models: one clear sentence."""

from argparse import Namespace

import pytest
import torch
from stock import build_tiny, translation_task


def refusal(model, state) -> str:
    with pytest.raises(SystemExit) as stop:
        model.load_state_dict(state)
    return str(stop.value)


@pytest.mark.parametrize(
    ("flag", "theirs", "ours"),
    [
        ("seed", 2, 1),
        ("keep", 0.3, 0.5),
        ("init", "signed-constant", "kaiming-uniform"),
        ("fan", "kept", "full"),
        ("gain", 0.5, "q=0.5,k=0.5,v=0.5,out=0.70710678"),
        ("share", "none", "layers"),
    ],
)
def test_a_checkpoint_of_other_masks_is_refused_by_flag(flag, theirs, ours):
    state = build_tiny(**{f"mask_{flag}": theirs}).state_dict()
    assert refusal(build_tiny(), state) == (
        f"cannot load the checkpoint: it was trained with --mask-{flag} {theirs}, this"
        f" model has --mask-{flag} {ours}; give the same flags, or start a new"
        " --save-dir"
    )


def test_a_dense_checkpoint_is_refused():
    dense = build_tiny("transformer", share_decoder_input_output_embed=True)
    message = refusal(build_tiny(), dense.state_dict())
    assert "it has no masks; it is of a dense model" in message


def test_a_checkpoint_of_another_shape_is_refused_by_tensor():
    state = build_tiny(encoder_ffn_embed_dim=48).state_dict()
    assert (
        "4 tensors differ from this model's, first encoder.layers.0.fc1.masked.scores"
        " ((48, 16) there, (32, 16) here); give the --arch, dictionaries and flags"
    ) in refusal(build_tiny(), state)


def test_a_checkpoint_of_another_depth_or_dictionary_is_refused():
    deeper = build_tiny(decoder_layers=4).state_dict()
    assert "decoder.layers.3.self_attn.k_proj" in refusal(build_tiny(), deeper)
    shallower = build_tiny(decoder_layers=2).state_dict()
    assert "(absent there, (16, 16) here)" in refusal(build_tiny(), shallower)
    other = build_tiny(task=translation_task(41, 30)).state_dict()
    assert "encoder.embed_tokens.masked.scores" in refusal(build_tiny(), other)


def test_layers_can_be_left_out_of_a_loaded_model():
    trained = build_tiny(encoder_layers=4).eval()
    arguments = {"encoder_layers_to_keep": "1,3", "decoder_layers_to_keep": "0,2"}
    pruned = build_tiny(**arguments)
    pruned.load_state_dict(
        trained.state_dict(), model_cfg=Namespace(arch="any", **arguments)
    )
    kept = [trained.encoder.layers[1], trained.encoder.layers[3]]
    assert len(pruned.decoder.layers) == 2
    for ours, theirs in zip(pruned.eval().encoder.layers, kept):
        assert torch.equal(ours.fc1.weight, theirs.fc1.weight)


def test_a_partial_state_is_accepted_when_not_strict():
    model = build_tiny()
    state = {
        name: tensor
        for name, tensor in build_tiny().state_dict().items()
        if "version" not in name
    }
    model.load_state_dict(state, strict=False)  # as fairseq's EMA does
