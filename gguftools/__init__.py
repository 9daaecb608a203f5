"""Turn Hugging Face checkpoints into GGUF files, quantize them, edit them, and measure what quantizing cost.

What is listed in `__all__` is the public Python API; what a command does, one of its functions does.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_API = {  # module: what of it is public; imported when first asked for, so that `import gguftools` costs nothing
    "gguftools.calibration.target": "SearchOptions",
    "gguftools.calibration.texts": "Calibration",
    "gguftools.cli.json_schema": "schema",
    "gguftools.conversion.convert": "convert",
    "gguftools.conversion.demo": "demo example",
    "gguftools.conversion.endianness": "convert_endian",
    "gguftools.conversion.export": "export",
    "gguftools.conversion.frontier": "frontier",
    "gguftools.conversion.options": "ConvertOptions",
    "gguftools.conversion.quantize": "quantize",
    "gguftools.conversion.shards": "merge split",
    "gguftools.inspection.audit": "audit",
    "gguftools.inspection.catalogue": "architectures formats",
    "gguftools.inspection.compare": "diff",
    "gguftools.inspection.describe": "show",
    "gguftools.inspection.fitting": "FitOptions fit",
    "gguftools.inspection.graph": "graph",
    "gguftools.inspection.hashing": "hash",
    "gguftools.inspection.identification": "identify",
    "gguftools.inspection.importance": "imatrix_info merge_imatrices",
    "gguftools.inspection.original.check": "check",
    "gguftools.inspection.templates": "chat_template compare_chat_templates",
    "gguftools.inspection.validation": "validate",
    "gguftools.inspection.weight_errors": "weight_errors",
    "gguftools.lab.drafts": "DraftCheckOptions draft_check",
    "gguftools.lab.gpu_split": "gpu_split",
    "gguftools.lab.grafting": "ExpertOptions GraftOptions graft",
    "gguftools.lab.graph_values": "compare_values node_values",
    "gguftools.lab.patching": "apply_patch make_patch patch",
    "gguftools.lab.reproduction": "Provenance Selection attest reproduce verify_attestation",
    "gguftools.measurement.divergence": "divergence",
    "gguftools.measurement.evaluation": "evaluate",
    "gguftools.measurement.importance": "imatrix",
    "gguftools.measurement.options": "DivergenceOptions EvaluationOptions ImatrixOptions PerplexityOptions",
    "gguftools.measurement.perplexity": "perplexity",
    "gguftools.metadata.edit": "EditOptions set_metadata",
    "gguftools.metadata.operations": "Remove Rename Set SetChatTemplate SetItem SetSpecialToken SetType",
    "gguftools.models.devices": "DeviceOptions",
    "gguftools.models.embedding": "embed",
    "gguftools.models.generating": "chat generate",
    "gguftools.models.generation": "GenerateOptions",
    "gguftools.models.model": "Model load open",
    "gguftools.models.tokenizing": "tokenize",
    "gguftools.publish.cards.card": "CardOptions card",
    "gguftools.publish.release.release": "release",
    "gguftools.publish.release.settings": "ReleaseOptions",
    "gguftools.publish.hub.fetching": "fetch",
    "gguftools.publish.hub.uploading": "UploadOptions upload",
    "gguftools.publish.report.results_report": "report",
    "gguftools.quantization.options": "QuantizeOptions",
    "gguftools.writing.options": "WriteOptions",
    "quants.errors": "GgufToolsError",
    "runtime.model": "RunningModel",
}
_MODULES = {name: module for module, names in _API.items() for name in names.split()}

__all__ = [
    "Calibration",
    "CardOptions",
    "ConvertOptions",
    "DeviceOptions",
    "DivergenceOptions",
    "DraftCheckOptions",
    "EditOptions",
    "EvaluationOptions",
    "ExpertOptions",
    "FitOptions",
    "GenerateOptions",
    "GgufToolsError",
    "GraftOptions",
    "ImatrixOptions",
    "Model",
    "PerplexityOptions",
    "Provenance",
    "QuantizeOptions",
    "ReleaseOptions",
    "Remove",
    "Rename",
    "RunningModel",
    "SearchOptions",
    "Selection",
    "Set",
    "SetChatTemplate",
    "SetItem",
    "SetSpecialToken",
    "SetType",
    "UploadOptions",
    "WriteOptions",
    "__version__",
    "apply_patch",
    "architectures",
    "attest",
    "audit",
    "card",
    "chat",
    "chat_template",
    "check",
    "compare_chat_templates",
    "compare_values",
    "convert",
    "convert_endian",
    "demo",
    "diff",
    "divergence",
    "draft_check",
    "embed",
    "evaluate",
    "example",
    "export",
    "fetch",
    "fit",
    "formats",
    "frontier",
    "generate",
    "gpu_split",
    "graft",
    "graph",
    "hash",
    "identify",
    "imatrix",
    "imatrix_info",
    "load",
    "make_patch",
    "merge",
    "merge_imatrices",
    "node_values",
    "open",
    "patch",
    "perplexity",
    "quantize",
    "release",
    "report",
    "reproduce",
    "schema",
    "set_metadata",
    "show",
    "split",
    "tokenize",
    "upload",
    "validate",
    "verify_attestation",
    "weight_errors",
]

if TYPE_CHECKING:
    from quants.errors import GgufToolsError
    from runtime.model import RunningModel

    from .calibration.target import SearchOptions
    from .calibration.texts import Calibration
    from .cli.json_schema import schema
    from .conversion.convert import convert
    from .conversion.demo import demo, example
    from .conversion.endianness import convert_endian
    from .conversion.export import export
    from .conversion.frontier import frontier
    from .conversion.options import ConvertOptions
    from .conversion.quantize import quantize
    from .conversion.shards import merge, split
    from .inspection.audit import audit
    from .inspection.catalogue import architectures, formats
    from .inspection.compare import diff
    from .inspection.describe import show
    from .inspection.fitting import FitOptions, fit
    from .inspection.graph import graph
    from .inspection.hashing import hash
    from .inspection.identification import identify
    from .inspection.importance import imatrix_info, merge_imatrices
    from .inspection.original.check import check
    from .inspection.templates import chat_template, compare_chat_templates
    from .inspection.validation import validate
    from .inspection.weight_errors import weight_errors
    from .lab.drafts import DraftCheckOptions, draft_check
    from .lab.gpu_split import gpu_split
    from .lab.grafting import ExpertOptions, GraftOptions, graft
    from .lab.graph_values import compare_values, node_values
    from .lab.patching import apply_patch, make_patch, patch
    from .lab.reproduction import Provenance, Selection, attest, reproduce, verify_attestation
    from .measurement.divergence import divergence
    from .measurement.evaluation import evaluate
    from .measurement.importance import imatrix
    from .measurement.options import DivergenceOptions, EvaluationOptions, ImatrixOptions, PerplexityOptions
    from .measurement.perplexity import perplexity
    from .metadata.edit import EditOptions, set_metadata
    from .metadata.operations import Remove, Rename, Set, SetChatTemplate, SetItem, SetSpecialToken, SetType
    from .models.devices import DeviceOptions
    from .models.embedding import embed
    from .models.generating import chat, generate
    from .models.generation import GenerateOptions
    from .models.model import Model, load, open
    from .models.tokenizing import tokenize
    from .publish.cards.card import CardOptions, card
    from .publish.hub.fetching import fetch
    from .publish.hub.uploading import UploadOptions, upload
    from .publish.release.release import release
    from .publish.release.settings import ReleaseOptions
    from .publish.report.results_report import report
    from .quantization.options import QuantizeOptions
    from .writing.options import WriteOptions


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module 'gguftools' has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
