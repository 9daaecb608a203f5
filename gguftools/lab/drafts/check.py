"""Check whether a draft pays: vocabularies, acceptance on texts, predicted speed-up, and simulated decoding."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from quants.arguments import PathLike, as_count, wrong
from quants.errors import ModelError, OptionError, VocabularyError

from ...inspection.drafting import can_draft
from ...measurement.corpus import Corpus, read_corpus
from ...measurement.perplexity import Progress, context_warning, tokens_at_once
from ...measurement.texts import Texts, default_texts, texts_named
from ...models.model import Model, opened
from ...models.running import draft_reader, running_model
from .acceptance import (
    Acceptance,
    AcceptanceRun,
    BlockLogits,
    DraftLogits,
    SharedStates,
    assistant_forward,
    draft_forward,
)
from .costs import bytes_read, mtp_layer_bytes, timed_costs
from .figures import Costs, mean_cycle, runs
from .options import DraftCheckOptions
from .report import DraftCheckReport, DraftFigures, TemperatureFigures
from .simulation import Setting, prompts_of, simulate
from .texts import USUAL_LENGTH, chances, parts, places, temperature_figures

if TYPE_CHECKING:
    from runtime.evaluation.windows import Window
    from runtime.model import RunningModel
    from runtime.speculation.assistants import Assistant
    from runtime.speculation.blocks import BlockWriter
    from runtime.speculation.readers import Reader

LOOKUP, MTP, STATES = "lookup", "mtp", "states"
READING = (MTP, STATES)  # the model's states
DEEPEST_READ = 1  # later predictions depend on the tokens drafted before


def draft_check(
    target: PathLike | Model,
    *drafts: PathLike | Model,
    text: Texts | None = None,
    n_ctx: int | None = None,
    chunks: int | None = None,
    threads: int | None = None,
    options: DraftCheckOptions | None = None,
    progress: Progress | None = None,
) -> DraftCheckReport:
    """Measure how much faster a model generates with a draft: acceptance on texts, predicted speed-up, simulation.

    drafts: smaller models of the same vocabulary, and files that read the model's states (EAGLE-3, DFlash, MTP). text:
    one, several, or several by name, each with figures of its own, too; None for the texts of this package. n_ctx:
    tokens of a window, default 512; chunks: number of windows of each text. threads: None for all processors. options:
    how drafts are run and timed. progress(steps done, of how many, mean acceptance of the first draft so far). Raises
    FileError, ModelError, VocabularyError for the model itself, and OptionError for a text that is too short or no
    draft. Problems of a draft are in its figures.
    """
    plan = _checked(options or DraftCheckOptions())
    model = opened(target)
    candidates = [_candidate(model, draft) for draft in drafts]
    candidates += [_Candidate(LOOKUP, LOOKUP)] if plan.lookup else []
    candidates += [_Candidate(MTP, MTP)] if plan.mtp else []
    _check_names([each.name for each in candidates])
    net = running_model(model, threads)
    if plan.mtp:
        net.next_tokens  # noqa: B018  a model without one is told before anything runs
    _check_speaks(model, net)
    corpus = read_corpus(model, default_texts() if text is None else texts_named(text), n_ctx, chunks, None)
    run = _Run(model, net, corpus, plan, threads, progress)
    figures = run.figures(candidates)
    source = "given" if plan.verify_cost is not None or plan.cost_ratio != "timed" else "timed"
    return DraftCheckReport(
        str(model.path),
        corpus.n_ctx,
        corpus.texts,
        [float(each) for each in run.verify],
        source,
        plan.seed,
        figures,
        [*corpus.remarks, *_warnings(model, candidates, corpus.n_ctx)],
    )


def _warnings(model: Model, candidates: Sequence["_Candidate"], n_ctx: int) -> Iterator[str]:
    """Yield a warning for each model whose context is shorter than the windows."""
    for each in (model, *(draft.model for draft in candidates if draft.model is not None)):
        if warning := context_warning(each, n_ctx):
            yield f"{each.path}: {warning}"


def _checked(options: DraftCheckOptions) -> DraftCheckOptions:
    """Return the options with plain numbers. Raises OptionError for invalid ones."""
    temperatures, ratio = options.temperatures, options.cost_ratio
    if not temperatures:
        raise OptionError("there is no temperature", "for example 0,0.8,1")
    for each in temperatures:
        _check_number(each, "the temperature", 0)
    if len(set(temperatures)) < len(temperatures):
        raise OptionError("a temperature is given twice")
    if not isinstance(ratio, str):
        _check_number(ratio, "the cost ratio", 0)
    elif ratio not in ("timed", "bytes"):
        raise OptionError(f"the cost ratio is {ratio!r}", "a number, timed or bytes is expected")
    if options.verify_cost is not None:
        _check_number(options.verify_cost, "the cost of verification", 0)
    return replace(
        options,
        temperatures=tuple(map(float, temperatures)),
        draft_max=as_count(options.draft_max, "the longest draft", 1),
        simulated=as_count(options.simulated, "simulated tokens", 0),
        seed=as_count(options.seed, "the seed", 0),
    )


def _check_number(given: Any, what: str, minimum: float) -> None:
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise wrong(what, given, "a number")
    if not (math.isfinite(given) and given >= minimum):
        raise OptionError(f"{what} is {given}; a number from {minimum:g} on is expected")


def _check_speaks(model: Model, net: "RunningModel") -> None:
    if net.encoder_decoder is not None or not net.architecture.block.causal:
        problem = f"a model of {model.architecture} does not generate text"
        raise ModelError(f"{model.path} can't be drafted for: {problem}")


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise OptionError("there is no draft to check", "name a file, or ask for lookup or mtp")
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"{name} is to be checked twice", "name it once")


@dataclass
class _Candidate:
    """A draft to check. name: its path or type."""

    name: str
    draft_type: str
    model: Model | None = None
    obstacles: tuple[str, ...] = ()
    edits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _candidate(model: Model, given: PathLike | Model) -> _Candidate:
    """Return a draft after comparing vocabularies. Raises OptionError for the model itself, FileError for an unreadable
    file.
    """
    draft = opened(given)
    if draft is model or _same_file(model, draft):
        problem = f"{draft.path} is the model itself: drafting would take as long as writing"
        raise OptionError(problem, "name a smaller model, or the same one in a smaller format")
    try:
        report = can_draft(model, draft)
    except VocabularyError as error:
        return _Candidate(str(draft.path), "model", draft, (str(error),))
    return _Candidate(str(draft.path), "model", draft, report.obstacles, report.edits, report.notes)


def _same_file(one: Model, other: Model) -> bool:
    """Return whether both are what is in one file, unchanged."""
    try:
        same = bool(one.files) and one.files[0].samefile(other.files[0])
    except (OSError, IndexError):
        return False
    return same and one.is_as_opened and other.is_as_opened


class _Run:
    """One check: the model and its drafts on texts. verify, drawn: see `Costs`."""

    def __init__(
        self,
        model: Model,
        net: "RunningModel",
        corpus: Corpus,
        plan: DraftCheckOptions,
        threads: int | None,
        progress: Progress | None,
    ) -> None:
        self.model, self.net, self.corpus, self.plan, self.threads = model, net, corpus, plan, threads
        self.size = min(model.tokenizer.vocab_size, net.vocabulary_size)
        self.progress, self.done, self.steps, self.mean = progress, 0, 0, 0.0
        self.verify: NDArray[np.float64] = np.ones(plan.draft_max + 1)
        self.drawn = 0.0
        self.timed: dict[str, Costs] = {}
        self.readers: dict[str, Reader | Assistant | BlockWriter] = {}  # of drafts that read the model's states
        self.ids = corpus.windows[0].inputs.tolist()
        self.prompts = prompts_of(list(corpus.by_text().values()), corpus.n_ctx, plan.simulated)

    def figures(self, candidates: Sequence[_Candidate]) -> list[DraftFigures]:
        able = [each for each in candidates if not each.obstacles]
        nets: dict[str, RunningModel] = {}
        for each in able:
            self._prepare(each, nets)
        able = [each for each in able if not each.obstacles]
        simulations = len(self.plan.temperatures) * len(self.prompts.texts) if self.plan.simulated else 0
        self.steps = len(self.corpus.windows) * bool(able) + simulations * len(able)
        if not able:
            return [_unable(each) for each in candidates]
        self._report_progress()
        try:
            acceptances = self._pass(self.corpus.windows, able, nets, self.plan.temperatures).run(self._window_done)
        except ModelError as error:  # a draft's error is recorded as its problem
            raise ModelError(f"{self.model.path} can't be measured: {error}", error.hint) from error
        for each in able:
            if (problem := acceptances[each.name].problem) is not None:
                each.obstacles = (problem,)
                nets.pop(each.name, None)
                self.readers.pop(each.name, None)
        self._time(nets)
        return [
            _unable(each) if each.obstacles else self._measured(each, acceptances[each.name], nets)
            for each in candidates
        ]

    def _prepare(self, candidate: _Candidate, nets: dict[str, "RunningModel"]) -> None:
        """Load a draft; an error becomes its obstacle."""
        from runtime.speculation.readers import OwnLayer

        if candidate.draft_type == MTP:
            self.readers[MTP] = OwnLayer(self.net)
        if candidate.model is None:
            return
        try:
            reader = draft_reader(candidate.model, self.net)
            if reader:
                self.readers[candidate.name], candidate.draft_type = reader, STATES
                return
            net = running_model(candidate.model, self.threads)
            if net.encoder_decoder is not None or not net.architecture.block.causal:
                raise ModelError(f"a model of {candidate.model.architecture} does not generate text")
        except ModelError as error:
            candidate.obstacles = (str(error),)
            return
        nets[candidate.name] = net

    def _time(self, nets: Mapping[str, "RunningModel"]) -> None:
        plan = self.plan
        timed = plan.cost_ratio == "timed"
        if timed:
            target_costs, costs = timed_costs(self.net, list(nets.values()), self.ids, plan.draft_max)
            self.verify, self.drawn = target_costs.verify, target_costs.drawn
            self.timed = dict(zip(nets, costs, strict=True))
        if plan.verify_cost is not None or not timed:
            self.verify = 1 + (plan.verify_cost or 0.0) * np.arange(plan.draft_max + 1, dtype=np.float64)

    def _window_done(self, done: int, _: int, mean: float) -> None:
        self.done, self.mean = done, mean
        self._report_progress()

    def _report_progress(self) -> None:
        if self.progress is not None:
            self.progress(self.done, self.steps, self.mean)

    def _pass(
        self,
        windows: Sequence["Window"],
        drafts: Sequence[_Candidate],
        nets: Mapping[str, "RunningModel"],
        temperatures: Sequence[float],
    ) -> AcceptanceRun:
        from runtime.evaluation.divergence import RunningLogits
        from runtime.head import output_of
        from runtime.speculation.assistants import Assistant
        from runtime.speculation.blocks import BlockWriter

        at_once = tokens_at_once(self.model)
        readers = {each.name: self.readers[each.name] for each in drafts if each.draft_type in READING}
        shared = SharedStates(self.net, [each for each in readers.values() if not isinstance(each, Assistant)])
        forward = shared.own if readers else self.net.lazy_logits
        target = RunningLogits(forward, windows, at_once, output_of(self.net.network))
        running: dict[str, DraftLogits] = {}
        for each in drafts:
            if each.draft_type in READING:
                reader = readers[each.name]
                if isinstance(reader, BlockWriter):
                    length = min(USUAL_LENGTH, self.plan.draft_max)
                    running[each.name] = BlockLogits(shared, reader, windows, length)
                else:
                    says = assistant_forward(reader) if isinstance(reader, Assistant) else shared.of(reader)
                    running[each.name] = RunningLogits(says, windows, at_once)
            elif each.model is not None:
                net = nets[each.name]
                running[each.name] = RunningLogits(
                    draft_forward(net), windows, tokens_at_once(each.model), output_of(net.network)
                )
        lookup = next((each.name for each in drafts if each.draft_type == LOOKUP), None)
        return AcceptanceRun(windows, self.size, target, running, lookup, temperatures, self.net.threads)

    def _measured(self, draft: _Candidate, acceptance: Acceptance, nets: Mapping[str, "RunningModel"]) -> DraftFigures:
        plan, size = self.plan, bytes_read(self.model)
        own = 0.0
        if draft.model is not None:
            own = bytes_read(draft.model)
        elif draft.draft_type == MTP:
            own = mtp_layer_bytes(self.model)
        costs, source = Costs(own / size, self.verify, own / size * (plan.verify_cost or 0.0), self.drawn), "bytes"
        if draft.draft_type != LOOKUP and not isinstance(plan.cost_ratio, str):
            costs = Costs(plan.cost_ratio, self.verify, plan.cost_ratio * (plan.verify_cost or 0.0), self.drawn)
            source = "given"
        elif draft.name in self.timed:
            costs, source = self.timed[draft.name], "timed"
            if plan.verify_cost is not None:
                costs = replace(costs, verify=self.verify)
        longest = DEEPEST_READ if draft.draft_type in READING else plan.draft_max
        at = [
            temperature_figures(acceptance, i, temperature, self.corpus, longest, costs)
            for i, temperature in enumerate(plan.temperatures)
        ]
        if plan.simulated:
            at = [self._with_simulation(draft, each, nets) for each in at]
        agree = parts(acceptance.agree, places(self.corpus.windows))
        every = np.concatenate(agree)
        offered = np.concatenate(acceptance.drafted) > 0 if acceptance.drafted else np.ones(len(every), bool)
        return DraftFigures(
            draft.name,
            draft.draft_type,
            [],
            list(draft.edits),
            list(draft.notes),
            int(own),
            costs.draft,
            source,
            own / size,
            [float(each) for each in costs.verify],
            costs.last,
            costs.drawn,
            float(offered.mean()),
            float(every[offered].mean()) if offered.any() else 0.0,
            None if draft.draft_type == LOOKUP else runs(agree),
            at,
        )

    def _with_simulation(
        self, draft: _Candidate, at: TemperatureFigures, nets: Mapping[str, "RunningModel"]
    ) -> TemperatureFigures:
        """Return the figures with those of a simulation, and the prediction for the generated text."""
        usual = min(USUAL_LENGTH, self.plan.draft_max)
        length = usual if draft.draft_type in READING else at.draft_length or usual
        by: Any = nets.get(draft.name) or self.readers.get(draft.name) or LOOKUP
        context = None if draft.model is None else draft.model.context_length
        ends = self.model.tokenizer.end_ids
        setting = Setting(self.net, by, self.size, context, frozenset(ends), at.temperature, length, self.plan.seed)
        simulation, written = simulate(setting, self.prompts, self._prompt_done)
        if simulation is None:
            return at
        known = draft.draft_type not in READING or length <= DEEPEST_READ
        predicted = self._predicted(draft, written, nets, at, length) if known else None
        return replace(at, simulation=replace(simulation, predicted=predicted))

    def _prompt_done(self) -> None:
        self.done += 1
        self._report_progress()

    def _predicted(
        self,
        draft: _Candidate,
        written: Sequence["Window"],
        nets: Mapping[str, "RunningModel"],
        at: TemperatureFigures,
        length: int,
    ) -> float | None:
        """Return the mean tokens per cycle, predicted from the chances along texts."""
        acceptance = self._pass(written, [draft], nets, [at.temperature]).run()[draft.name]
        mean = mean_cycle(chances(acceptance, 0, places(written), length, written=True), length)
        return None if mean is None else mean.tokens


def _unable(draft: _Candidate) -> DraftFigures:
    return DraftFigures(draft.name, draft.draft_type, list(draft.obstacles), list(draft.edits), list(draft.notes))
