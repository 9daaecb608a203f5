"""Encode an output's weights with error feedback before it is written."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from quants.arguments import thread_count
from quants.errors import OptionError

from ..models.devices import torch_device_for
from ..models.model import Model
from ..quantization.outputs import EncodeAhead
from ..quantization.planning import Planned, Planner
from ..writing.executors import leaves_process
from ..writing.items import EncodedRows, Item
from ..writing.options import WriteOptions
from ..writing.resume import fingerprint
from .choosing import AIM, DAMPINGS
from .encoded import open_encoded
from .feedback import encode_layers, wanted_items
from .row_tasks import Workers
from .texts import Calibration, calibration_windows

VERSION = 3  # of how weights are encoded: an earlier run of another one is not gone on with


def with_feedback(model: Model, calibration: Calibration) -> EncodeAhead:
    """Return the `encode` function of `write_recipes` for error feedback on calibration texts.

    Its run's progress(bytes of weights done, of how many, layer). Raises what reading the texts raises, OptionError for
    a device that is not there.
    """
    device = torch_device_for(calibration.device)
    windows = calibration_windows(model, calibration)

    @contextmanager
    def encode(planner: Planner, planned: Planned, run: WriteOptions) -> Iterator[Planned]:
        items = wanted_items(planned)
        if not items:
            planner.warnings.append(f"error feedback changes no tensor of {planned.name}")
            yield planned
            return
        importances = hashlib.sha256()
        for name, item in items.items():
            importances.update(f"{name} {item.format.name} {item.tensor.shape}".encode())
            importances.update(b"" if item.importance is None else item.importance.tobytes())
        head = {
            "gguftools": VERSION,
            "texts": windows.digest(),
            "weights": importances.hexdigest(),
            "dampings": list(DAMPINGS),
            "aim": AIM,
            "memory": calibration.memory,
            "sources": fingerprint(planner.origin.files, planner.origin.recorded),
        }
        away = run.executor if leaves_process(run.executor) else None
        if device is not None:
            head["device"] = device.name
            if away is not None:
                raise OptionError("error feedback on a device shares no work with workers", "leave out `executor`")
        with open_encoded(planned.files[0].path, head, run.resume) as kept:
            kept.restore({name: (item.tensor, [item.format]) for name, item in items.items()})
            workers = None if away is None else Workers(away, run.source, kept, thread_count(run.threads))
            encode_layers(model, planner.layers, items, windows, kept, calibration, run, workers)
            made_by = json.dumps(head, sort_keys=True)

            def ready(item: Item) -> Item:
                name = item.tensor.name
                if name not in items or name not in kept.tensors:
                    return item
                return item._replace(ready=EncodedRows(kept.tensors[name], kept.remarks[name], made_by))

            files = tuple(replace(file, items=tuple(map(ready, file.items))) for file in planned.files)
            yield planned._replace(files=files)

    return encode
