#!/usr/bin/env bash
# Train on data of prepare.sh with the fine-tuning hyperparameters of Liu et al. (2019).
#
#   examples/glue/train.sh QQP data/glue/QQP/data-bin glue-qqp --mask-keep 0.7
#
# Environment: ARCH (default roberta_onelayer_random_base), LR, BATCH, UPDATES, WARMUP,
# POSITIONS. Flags at the end go to fairseq-train and win over all that is here.
set -euo pipefail

if [ $# -lt 3 ]; then
    echo "usage: train.sh TASK DATA-BIN SAVE-DIR [flags of fairseq-train]" >&2
    exit 2
fi
task=$1 data=$2 save=$3
shift 3
if [ ! -f "$data/input0/dict.txt" ]; then
    echo "train.sh: $data/input0/dict.txt is missing: $data is not a data-bin of" \
        "examples/glue/prepare.sh" >&2
    exit 1
fi

# Learning rate, sentences a batch, updates and warm-up of each task of GLUE.
case $task in
    MNLI) row=(1e-5 32 123873 7432) ;;
    QNLI) row=(1e-5 32 33112 1986) ;;
    QQP) row=(1e-5 32 113272 28318) ;;
    RTE) row=(2e-5 16 2036 122) ;;
    MRPC) row=(1e-5 16 2296 137) ;;
    STS-B) row=(2e-5 16 3598 214) ;;
    *) row=(1e-5 32 20000 1200) ;;
esac

if [ -f "$data/label/dict.txt" ]; then
    goal=(--num-classes "$(grep -c -v '^madeupword' "$data/label/dict.txt")"
        --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric)
elif [ -f "$data/label/train.label" ]; then
    goal=(--num-classes 1 --regression-target --best-checkpoint-metric loss)
else
    echo "train.sh: $data/label has neither dict.txt (classes) nor train.label (a" \
        "regression): prepare the data again" >&2
    exit 1
fi
valid=valid
[ -f "$data/input0/valid1.idx" ] && valid=valid,valid1

python=${PYTHON:-python}
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    device=(--fp16 --fp16-init-scale 4 --threshold-loss-scale 1 --fp16-scale-window 128)
else
    device=(--cpu --num-workers 0)
fi

package=$(cd "$(dirname "$0")/../../onelayer_lottery" && pwd)
exec "$python" -m fairseq_cli.train "$data" --user-dir "$package" --save-dir "$save" \
    --arch "${ARCH:-roberta_onelayer_random_base}" \
    --task sentence_prediction --criterion sentence_prediction "${goal[@]}" \
    --init-token 0 --separator-token 2 --max-positions "${POSITIONS:-512}" \
    --valid-subset "$valid" --required-batch-size-multiple 1 \
    --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --clip-norm 0 \
    --weight-decay 0.1 --dropout 0.1 --attention-dropout 0.1 \
    --lr-scheduler polynomial_decay --lr "${LR:-${row[0]}}" \
    --batch-size "${BATCH:-${row[1]}}" \
    --total-num-update "${UPDATES:-${row[2]}}" --max-update "${UPDATES:-${row[2]}}" \
    --warmup-updates "${WARMUP:-${row[3]}}" \
    --find-unused-parameters --no-epoch-checkpoints "${device[@]}" "$@"
