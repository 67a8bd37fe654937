#!/usr/bin/env bash
# Train a dense RoBERTa as a masked language model, on sentences of prepare.sh --sentences.
#
#   examples/glue/pretrain.sh data/glue/QQP/sentences data/glue/QQP/pretrained
#
# Environment: ARCH (default roberta), LR, BATCH (blocks of POSITIONS symbols), UPDATES,
# WARMUP, POSITIONS. The default shape is that of roberta_onelayer_random_tiny. Flags at
# the end go to fairseq-train and win over all that is here.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: pretrain.sh SENTENCES SAVE-DIR [flags of fairseq-train]" >&2
    exit 2
fi
data=$1 save=$2
shift 2
if [ ! -f "$data/dict.txt" ]; then
    echo "pretrain.sh: $data/dict.txt is missing: make $data with" \
        "examples/glue/prepare.sh --sentences" >&2
    exit 1
fi

python=${PYTHON:-python}
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    device=(--fp16)
else
    device=(--cpu --num-workers 0)
fi

updates=${UPDATES:-4000}
package=$(cd "$(dirname "$0")/../../onelayer_lottery" && pwd)
# Blocks of several sentences: single ones would leave the last positions untrained.
"$python" -m fairseq_cli.train "$data" --user-dir "$package" --save-dir "$save" \
    --arch "${ARCH:-roberta}" --task masked_lm --criterion masked_lm \
    --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --encoder-attention-heads 4 \
    --encoder-layers 3 --max-positions "${POSITIONS:-64}" \
    --tokens-per-sample "${POSITIONS:-64}" --sample-break-mode complete \
    --required-batch-size-multiple 1 --batch-size "${BATCH:-32}" \
    --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --clip-norm 1.0 \
    --weight-decay 0.01 --dropout 0.1 --attention-dropout 0.1 \
    --lr-scheduler polynomial_decay --lr "${LR:-1e-3}" \
    --warmup-updates "${WARMUP:-$((updates / 10))}" \
    --total-num-update "$updates" --max-update "$updates" \
    --no-epoch-checkpoints "${device[@]}" "$@"
# What looks for the symbols of its embeddings finds them beside the checkpoint.
cp "$data/dict.txt" "$save/dict.txt"
