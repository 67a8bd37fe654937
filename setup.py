"""Packaging. torch and fairseq are brought by the user: see README, Installation."""

import re
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

ROOT = Path(__file__).parent
PACKAGE = ROOT / "onelayer_lottery" / "__init__.py"

# Apple's compiler has no OpenMP: there the loops run in one thread.
THREADS = [] if sys.platform == "darwin" else ["-fopenmp"]

setup(
    name="onelayer_lottery",
    version=re.search(r'__version__ = "(.+?)"', PACKAGE.read_text()).group(1),
    description="One random Transformer layer, many learned masks: a fairseq plugin",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["onelayer_lottery", "onelayer_lottery.*"]),
    # Without a compiler it is left out, and NumPy does its work.
    ext_modules=[
        Extension(
            "onelayer_lottery._kernels",
            ["onelayer_lottery/_kernels.c"],
            extra_compile_args=["-O3", "-ffp-contract=off", *THREADS],
            extra_link_args=THREADS,
            optional=True,
        )
    ],
    python_requires=">=3.8",
    install_requires=["numpy"],
    extras_require={
        "experiments": ["matplotlib", "pyyaml", "sacrebleu", "submitit"],
    },
    entry_points={"console_scripts": ["onelayer-lottery = onelayer_lottery.cli:main"]},
)
