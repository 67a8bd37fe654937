#!/usr/bin/env bash
# Sentence pairs with a label as TSV -> subwords -> OUT/data-bin for fairseq.
#
#   examples/glue/prepare.sh QQP  --source glue/QQP  --out data/glue/QQP
#   examples/glue/prepare.sh MNLI --source MNLI.zip  --out data/glue/MNLI --skip-bad
#   examples/glue/prepare.sh mine --source my-folder --out data/mine --columns label,first,second
#
# All flags: examples/glue/prepare.sh --help
exec "${PYTHON:-python}" "$(dirname "$0")/prepare.py" "$@"
