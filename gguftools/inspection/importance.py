"""Examine importance matrices, and merge them into one."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quants.arguments import PathLike, wrong

from ..io.atomic import NOTHING, check_target, output_path
from ..models.model import Model, model_of_weights
from ..quantization.imatrix import ImportanceMatrix, merge, read_imatrix, write_imatrix
from ..quantization.imatrix_doctor import Finding, examine, filled
from ..quantization.imatrix_statistics import MatrixStatistics
from ..quantization.imatrix_statistics import statistics as statistics_of


@dataclass(frozen=True)
class ImatrixReport:
    """An importance matrix, its defects (errors first), and llama-imatrix's statistics if requested."""

    matrix: ImportanceMatrix
    findings: tuple[Finding, ...]
    statistics: MatrixStatistics | None = None

    @property
    def has_errors(self) -> bool:
        """Return whether the matrix cannot be used."""
        return any(finding.severity == "error" for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data."""
        own = self.matrix.as_dict() | {"findings": [vars(finding) for finding in self.findings]}
        return own | ({"statistics": self.statistics.as_dict()} if self.statistics else {})


@dataclass(frozen=True)
class MergedImatrix:
    """A matrix that was written. remarks: a line for each filled gap."""

    file: Path
    matrix: ImportanceMatrix
    remarks: list[str]


def imatrix_info(
    imatrix: PathLike | ImportanceMatrix, model: PathLike | Model | None = None, *, statistics: bool = False
) -> ImatrixReport:
    """Examine an importance matrix: coverage, defects, importance of layers.

    imatrix: a file, GGUF or legacy .dat, or a matrix. model: a checkpoint, GGUF file or Model that the matrix is for;
    reports weights that the matrix lacks. statistics: compute llama-imatrix's statistics of each tensor and layer, too.
    Raises FileError, OptionError.
    """
    matrix = imatrix if isinstance(imatrix, ImportanceMatrix) else read_imatrix(imatrix)
    findings = examine(matrix, None if model is None else model_of_weights(model).tensors)
    figures = statistics_of(matrix.entries, matrix.next_layers) if statistics else None
    return ImatrixReport(matrix, tuple(findings), figures)


def merge_imatrices(
    imatrices: Sequence[PathLike | ImportanceMatrix],
    output: PathLike,
    *,
    fill: PathLike | Model | None = None,
    min_rows: int = 0,
    overwrite: bool = False,
) -> MergedImatrix:
    """Merge importance matrices into one file, or convert one between GGUF and the legacy form (a name in .dat).

    imatrices: files or matrices. output: the file to write. fill: the model that they are for; a weight without data
    gets that of a weight with the same input. min_rows: experts that saw fewer inputs get the mean of all experts for
        those that they lack. overwrite: replace a file. Raises FileError, OptionError.
    """
    if isinstance(imatrices, (str, os.PathLike)) or not isinstance(imatrices, Sequence) or not imatrices:
        raise wrong("imatrices", imatrices, "a list of one or more importance matrices")
    model, target = None if fill is None else model_of_weights(fill), output_path(output)
    matrices = [each if isinstance(each, ImportanceMatrix) else read_imatrix(each) for each in imatrices]
    reads = [*(matrix.path for matrix in matrices), *([] if model is None else model.files)]
    check_target(target, NOTHING.also(reads), overwrite)
    matrix, remarks = filled(merge(matrices), None if model is None else model.tensors, min_rows)
    write_imatrix(matrix, target, overwrite, reads)
    return MergedImatrix(target, matrix, remarks)
