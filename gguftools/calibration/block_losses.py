"""Published measurements of what the blocks of an image model lose when one of them is quantized.

Of Flux.1 dev: the mean squared error of the state after all blocks, when the weights of one block are rounded to Q4_K
and to Q8_0, by 240 prompts (chrisgoringe/mixed-gguf-converter, costs/casting_cost.yaml). The difference counts: what
little Q8_0 changes already is amplified by all later blocks. The first blocks lose most, and of the single blocks the
first and those shortly before the end.
"""

import re
from collections.abc import Iterable, Mapping

BLOCK = re.compile(r"^(double|single)_blocks\.(\d+)\.")
DOUBLE, SINGLE = 19, 38  # blocks
OF_Q4_K = (
    *(125.26, 112.92, 91.237, 75.396, 72.959, 70.298, 69.467, 74.795, 72.967, 72.076),
    *(78.085, 65.917, 73.896, 59.012, 56.921, 42.946, 50.804, 41.88, 39.689, 17.755),
    *(14.212, 13.667, 11.354, 9.3327, 8.5214, 7.3171, 5.9555, 5.7914, 6.0883, 5.5713),
    *(5.0084, 5.0005, 5.1039, 4.8332, 4.4072, 4.364, 4.2048, 3.7427, 3.6167, 3.5562),
    *(3.953, 4.0822, 4.2508, 4.5057, 6.2079, 5.3214, 6.5353, 6.2702, 7.3275, 9.7478),
    *(11.562, 14.278, 13.765, 23.535, 18.431, 4.365, 4.3127),
)
OF_Q8_0 = (
    *(61.301, 59.049, 52.052, 46.173, 41.89, 40.371, 39.33, 38.649, 39.691, 37.113),
    *(42.3, 32.119, 36.311, 28.363, 31.585, 22.684, 21.366, 22.821, 20.165, 8.9919),
    *(7.0144, 5.6607, 4.3013, 3.2282, 2.6107, 2.2284, 2.0084, 1.7973, 1.7241, 1.6537),
    *(1.5931, 1.5168, 1.4886, 1.4311, 1.3655, 1.3485, 1.279, 1.1935, 1.1399, 1.1311),
    *(1.078, 1.0562, 1.002, 0.95615, 0.96252, 0.90436, 0.84754, 0.74967, 0.73035, 0.66831),
    *(0.63407, 0.65018, 0.53044, 0.58509, 0.38429, 0.18293, 0.13739),
)


def losses_by_block(family: str, names: Iterable[str]) -> Mapping[str, float]:
    """Return what each block loses, by how its tensors' names begin; nothing for models without measurements.

    family: name of an image model's. Models whose blocks are other ones than the measured have none.
    """
    blocks = {matched[0] for name in names if (matched := BLOCK.match(name))}
    measured = [f"double_blocks.{i}." for i in range(DOUBLE)] + [f"single_blocks.{i}." for i in range(SINGLE)]
    if family != "flux" or blocks != set(measured):
        return {}
    return {block: more - less for block, more, less in zip(measured, OF_Q4_K, OF_Q8_0, strict=True)}
