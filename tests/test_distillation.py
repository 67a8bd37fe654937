"""Distillation through the real command, and its loss against one by hand."""

import pytest
import torch
from stock import batch, build_tiny, translation_task

from onelayer_lottery.criterions.distillation import DistillationCriterion

DISTIL = ("--criterion", "distillation")


@pytest.fixture
def task():
    return translation_task()


@pytest.mark.parametrize("part", [0.3, 1.0])
def test_the_loss_is_the_mean_of_both(task, part, monkeypatch):
    student, teacher = (build_tiny(task=task, mask_seed=seed).eval() for seed in (1, 2))
    monkeypatch.setattr(
        "onelayer_lottery.criterions.distillation._load", lambda *_: teacher
    )
    criterion = DistillationCriterion(
        task,
        sentence_avg=False,
        label_smoothing=0.0,
        teacher="teacher.pt",
        teacher_weight=part,
    )
    net_input = batch()
    target = net_input["prev_output_tokens"].roll(-1, 1)
    target[0, -2:] = task.target_dictionary.pad()
    sample = {"net_input": net_input, "target": target, "ntokens": target.numel()}
    validation = criterion(student, sample)[0]
    log_probs, teachers = (
        model(**sample["net_input"])[0].log_softmax(-1) for model in (student, teacher)
    )
    real = sample["target"] != task.target_dictionary.pad()
    stock = -log_probs.gather(-1, sample["target"][..., None])[..., 0][real].sum()
    away = -(teachers.exp() * log_probs).sum(-1)[real].sum()
    torch.testing.assert_close(validation, stock)
    student.training = True  # without dropout
    trained = criterion(student, sample)[0]
    torch.testing.assert_close(trained, (1 - part) * stock + part * away)
    trained.backward()
    assert all(p.grad is None for p in teacher.parameters())


def test_a_model_learns_from_a_trained_one(fairseq, trained):
    fairseq.train(
        *("data-bin", "distilled", *DISTIL),
        *("--teacher", trained / "checkpoint_last.pt", "--mask-seed", 7),
    )
    state = torch.load(fairseq.folder / "distilled" / "checkpoint_last.pt")
    assert not [name for name in state["model"] if "teacher" in name]
    assert not state.get("criterion")
    done = fairseq.generate("data-bin", "distilled/checkpoint_last.pt")
    assert done.lines("H")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "--criterion distillation needs --teacher CHECKPOINT"),
        (("--teacher", "none.pt"), "--teacher: none.pt is not a file"),
        (
            ("--teacher", "trained/checkpoint_last.pt", "--teacher-weight", 2),
            "--teacher-weight is 2.0; give a part",
        ),
    ],
)
def test_a_bad_teacher_is_one_sentence(fairseq, trained, flags, sentence):
    done = fairseq.train("data-bin", "never", *DISTIL, *flags, status=None)
    assert done.status != 0
    assert sentence in done.log
    assert "Traceback" not in done.log
