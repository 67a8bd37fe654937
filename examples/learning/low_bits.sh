#!/usr/bin/env bash
# Train a dense model on with few bits per weight (low_bits/), at the settings of study.yaml,
# translate the test set and print its BLEU. OUT keeps the checkpoint and the logs.
#
#   examples/learning/low_bits.sh data/multi30k/data-bin dense/checkpoint_best.pt 2 1 OUT
#
# The words are the data, the dense model to start from, the bits (2: ternary), the seed and
# the folder; flags of fairseq-train may follow.
set -euo pipefail
if [ $# -lt 5 ]; then
    echo "usage: low_bits.sh DATA-BIN CHECKPOINT BITS SEED OUT [FLAGS]" >&2
    exit 2
fi
data=$1 dense=$2 bits=$3 seed=$4 out=$5
plugin=$(cd "$(dirname "$0")" && pwd)/low_bits
export OMP_NUM_THREADS=1
mkdir -p "$out"
"${PYTHON:-python}" -m fairseq_cli.train "$data" --user-dir "$plugin" \
    --arch transformer_low_bits --weight-bits "$bits" --finetune-from-model "$dense" \
    --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-embed-dim 128 \
    --decoder-ffn-embed-dim 256 --encoder-attention-heads 4 --decoder-attention-heads 4 \
    --encoder-layers 3 --decoder-layers 3 --share-decoder-input-output-embed \
    --lr 2e-3 --dropout 0.1 --seed "$seed" --optimizer adam --adam-betas '(0.9,0.98)' \
    --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 800 \
    --max-update 800 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --max-tokens 500 --required-batch-size-multiple 1 --num-workers 0 --no-epoch-checkpoints \
    --save-interval-updates 200 --keep-interval-updates 1 --save-dir "$out" --cpu \
    --log-format simple "${@:6}" > "$out/train.log" 2>&1
"${PYTHON:-python}" -m fairseq_cli.generate "$data" --user-dir "$plugin" \
    --path "$out/checkpoint_best.pt" --beam 5 --max-len-a 1.2 --max-len-b 10 \
    --max-tokens 6000 --remove-bpe sentencepiece --required-batch-size-multiple 1 --cpu \
    > "$out/generate.log" 2> "$out/generate.err"
grep -o "nll_loss [0-9.]*" "$out/train.log" | tail -1
grep ^D- "$out/generate.log" | sort -V | cut -f 3 | "${PYTHON:-python}" -m sacrebleu -b "$data/reference.en"
