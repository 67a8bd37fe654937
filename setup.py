"""The compiled loops; everything else about the package is in pyproject.toml."""

import sys

from setuptools import Extension, setup

# Apple's compiler has no OpenMP: there the loops run in one thread.
THREADS = [] if sys.platform == "darwin" else ["-fopenmp"]

setup(
    ext_modules=[
        Extension(
            "onelayer_lottery.core._kernels",
            ["onelayer_lottery/core/_kernels.c"],
            extra_compile_args=["-O3", "-ffp-contract=off", *THREADS],
            extra_link_args=THREADS,
            optional=True,  # without a compiler, Python does their work
        )
    ],
)
