#!/usr/bin/env bash
# The masks of rejected_methods/ at the settings of "best" in study.yaml: their validation loss.
#
#   examples/learning/rejected_methods.sh data/multi30k/data-bin coats:2 1
#
# The last words are the method (coats:2, frozen:0.5, global, mean:0.99 or holding:0.1) and
# the seed; flags of fairseq-train may follow.
set -euo pipefail
if [ $# -lt 3 ]; then
    echo "usage: rejected_methods.sh DATA-BIN METHOD SEED [FLAGS]" >&2
    exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
# fairseq resumes from the save-dir even with --no-save: an empty one always starts anew.
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
METHOD=$2 OMP_NUM_THREADS=1 "${PYTHON:-python}" -m fairseq_cli.train "$1" \
    --user-dir "$here/rejected_methods" --arch transformer_onelayer_random_tiny \
    --mask-method "${2%%:*}" --mask-preset best --lr 3e-3 --dropout 0 --seed "$3" --mask-seed "$3" \
    --share-decoder-input-output-embed --optimizer adam --adam-betas '(0.9,0.98)' \
    --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 800 \
    --max-update 800 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
    --max-tokens 500 --required-batch-size-multiple 1 --num-workers 0 --no-save --save-dir "$empty" \
    --validate-interval-updates 200 --cpu --log-format simple "${@:4}"
