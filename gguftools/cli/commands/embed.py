"""Compute embeddings of texts, or scores of a reranker.

Pools as the file says. Prints a table or JSON, or writes .npy or .json.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from ..device_options import DEVICE_PANEL, DeviceChoice

if TYPE_CHECKING:
    from runtime.evaluation.pooling import Embeddings

EXAMPLES = (
    'gguftools embed model.gguf -p "It is a truth" -p "It is a lie"',
    "gguftools embed model.gguf --prompts texts.txt -o vectors.npy",
    "gguftools embed decoder.gguf --pooling last --prompts texts.txt --json",
    "gguftools embed reranker.gguf --pooling rank --prompts pairs.tsv",
)
GROUP = "Run"
PANELS = DEVICE_PANEL
SHOWN = 4  # values of a vector
MAX_COMPARED = 12  # texts


def embed(
    model: Annotated[Path, Argument(help="GGUF file (of a split set, any shard).")],
    prompt: Annotated[
        list[str] | None,
        Option("--prompt", "-p", help="Prompt (- for stdin): a text to embed; without any, one per line of stdin."),
    ] = None,
    prompts: Path | None = None,
    output: Annotated[str | None, ".npy or .json file for the vectors (- prints them)."] = None,
    pooling: Annotated[
        str | None, Option(metavar="TYPE", help="Pooling: none, mean, cls, last or rank (default: as the file says).")
    ] = None,
    normalize: Annotated[
        int | None,
        Option(
            min=-1, help="Normalization: -1 none, 0 max absolute int16, 1 taxicab, 2 Euclidean (default), >2 p-norm."
        ),
    ] = None,
    truncate: Annotated[bool, "Cut texts that are longer than the context."] = False,
    overwrite: bool = False,
    threads: int | None = None,
    *,
    where: DeviceChoice,
    json: bool = False,
) -> None:
    from runtime.evaluation.pooling import file_pooling, pooling_named, scores_pairs

    from ...io.atomic import NOTHING
    from ...metadata.prompts import texts_of
    from ...models.embedding import embed as run
    from ...models.model import opened_gguf
    from ...writing.vectors import check_output
    from .. import terminal
    from ..ui import note_before_running, print_line, print_result, window_progress

    source = opened_gguf(model)
    chosen = file_pooling(source.metadata) if pooling is None else pooling_named(pooling)
    texts = texts_of(prompt, prompts, pairs=chosen == "rank" and scores_pairs(source.metadata))
    reads = NOTHING.also([*source.files, prompts])
    target = None if output is None else check_output(output, reads, overwrite)
    device = where.chosen()
    note_before_running(source, threads)
    with window_progress(f"read {len(texts)} texts") as progress:
        report = run(
            source,
            texts,
            pooling=pooling,
            normalize=normalize,
            truncate=truncate,
            threads=threads,
            device=device,
            progress=progress,
        )
    if output is not None:
        report = report.save(output, overwrite=overwrite, reads=[prompts] if prompts else [])
    if print_result(report, json):
        return
    result = report.embeddings
    if output is None:
        _print(result)
    else:
        rows, width = result.vectors.shape
        print_line(
            str(target) if terminal.quiet else f"{target}: {rows} vectors of {width}, pooled by {result.pooling}"
        )


def _print(result: "Embeddings") -> None:
    """Print the first values of each vector and the cosines between texts, or a reranker's scores."""
    from ..ui import print_table

    values = result.vectors[:, : None if result.pooling == "rank" else SHOWN]
    columns = result.labels if result.pooling == "rank" and result.labels else [str(i) for i in range(values.shape[1])]
    texts = [i for i, count in enumerate(result.tokens, 1) for _ in range(count if result.pooling == "none" else 1)]
    rows = [
        (str(text), str(result.tokens[text - 1]), *(f"{value:.6f}" for value in row))
        for text, row in zip(texts, values, strict=True)
    ]
    print_table(None, ("text", "tokens", *columns), rows, "r" * (2 + len(columns)))
    if result.pooling not in ("none", "rank") and 1 < len(texts) <= MAX_COMPARED:
        from runtime.evaluation.pooling import EUCLIDEAN, normalized

        unit = normalized(result.vectors, EUCLIDEAN)
        alike = [(str(i), *(f"{value:.4f}" for value in row)) for i, row in enumerate(unit @ unit.T, 1)]
        print_table("cosine", ("text", *(row[0] for row in alike)), alike, "r" * (1 + len(alike)))
