"""Compile the Triton kernels for real GPUs, none of which is needed for that."""

import warnings

from triton import compile as compiled_for
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from onelayer_lottery.core import selection_triton

TABLES = ("pointers", "sizes", "owners", "starts", "thresholds")
KERNELS = {
    "_count_digits": {"bins": "*i32"},
    "_count_ties": {"ties": "*i64"},
    "_write_masks": {"lefts": "*i64", "offsets": "*i64", "masks": "*u8"},
}


def main():
    warnings.simplefilter("ignore")
    steps = {"STEP": selection_triton._STEP, "STEPS": selection_triton._STEPS}
    for capability in (70, 80, 90):  # V100, A100, H100
        for size, digits in selection_triton._DIGITS.items():
            for name, more in KERNELS.items():
                constants = {"HALF": size == 2, **steps}
                if name == "_count_digits":
                    constants["SHIFT"], constants["WIDTH"] = digits[0]
                types = {**dict.fromkeys(TABLES, "*i64"), **more}
                types.update(dict.fromkeys(constants, "constexpr"))
                source = ASTSource(
                    getattr(selection_triton, name), types, constexprs=constants
                )
                made = compiled_for(source, target=GPUTarget("cuda", capability, 32))
                print(capability, size, name, len(made.asm["cubin"]))


if __name__ == "__main__":
    main()
