"""Options and names of other programs, of llama.cpp above all, and what to type for them here.

Tables of options are by command, "" for all. An option that a command has itself is not looked up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FIRST, LAST = "first argument", "last argument"  # instead of an option's value


def _by_old(olds: Mapping[str, str]) -> dict[str, str]:
    """Return a table of new words, each with the old ones for it, turned around."""
    return {old: new for new, words in olds.items() for old in words.split()}


# Another name for an option of ours: several words are flags that go with it; {} is where the value goes.
RENAMED: Mapping[str, Mapping[str, str]] = {
    "": _by_old(
        {
            "--split-max-size": "--max-size --shard-size --max-shard-size",
            "--split-max-tensors": "--max-tensors",
            FIRST: "-m --model --model-path --in --input -i -mu --model-url",
            "--threads": "-t --n-threads --nthreads --nthread --jobs",
            "--output": "--outfile --output-file --out --out-file --output-dir --outdir",
            "--overwrite": "--force -y",
            "--ctx": "--ctx-size --n-ctx --context-size",
            "--file": "--text --text-file",
            "--stride": "--ppl-stride",
            "--chunks": "--n-chunks",
            "--no-tensors": "--no-layer",
            "--verbose": "--log-verbose",
            "--help": "--usage",
        }
    ),
    "quantize": _by_old(
        {
            LAST: "--outtype --type --ftype --qtype --recipe --quant",
            "--imatrix": "--imatrix-file",
            "--prune-layers": "--prune",
            "--tensor-type": "--tensor-types",
            "--memory {}M": "--max-buffer-size",
        }
    ),
    "convert": _by_old({"--outtype": "--type --ftype", "--pre": "--pre-tokenizer", "--no-mtp": "--no-nextn"}),
    "imatrix": _by_old(
        {
            "--skip-chunks": "--chunk --from-chunk",
            "--save-every": "--save-frequency",
            "--process-output": "--with-output",
        }
    ),
    "evaluate": _by_old(
        {
            "--tasks": "--hellaswag-tasks --winogrande-tasks --multiple-choice-tasks",
            "--multiple-choice": "-bf --binary-file",
        }
    ),
    "generate": {
        **_by_old(
            {
                "--stop": "--reverse-prompt -r",
                "--chat --system": "--system-prompt -sys",
                "--chat": "-cnv --conversation --jinja",
                "--temp": "--temperature",
                "--predict": "--n-predict",
                "--samplers": "--sampling-seq --sampler-seq",
                "--grammar": "--grammar-file",
                "--json-schema": "--json-schema-file -jf",
                "--special": "-sp",
                "--seed": "-s",
                "--cache-type": "--cache-type-k --cache-type-v -ctk -ctv",
                "--json --logprobs": "--n-probs",
                "--draft": "-md --model-draft --spec-draft-model",
                "--mmproj": "-mm -mmu --mmproj-url",
                "--draft-max": "--draft-n --draft-n-max --spec-draft-n-max",
                "--image-tokens": "--image-max-tokens",
                "--draft-min-p": "--draft-p-min --spec-draft-p-min",
            }
        ),
        **{
            f"--{old}": f"--sampling {name}={{}}"
            for name, olds in {
                "typical_p": "typical typical-p",
                "top_n_sigma": "top-nsigma top-n-sigma",
                "min_keep": "min-keep",
                "xtc_probability": "xtc-probability",
                "xtc_threshold": "xtc-threshold",
                "mirostat": "mirostat",
                "mirostat_tau": "mirostat-ent",
                "mirostat_eta": "mirostat-lr",
                "dynatemp_range": "dynatemp-range",
                "dynatemp_exponent": "dynatemp-exp",
                "dry_multiplier": "dry-multiplier",
                "dry_base": "dry-base",
                "dry_allowed_length": "dry-allowed-length",
                "dry_penalty_last_n": "dry-penalty-last-n",
                "adaptive_target": "adaptive-target",
                "adaptive_decay": "adaptive-decay",
                "min_tokens": "min-tokens",
            }.items()
            for old in olds.split()
        },
    },
    "draft-check": _by_old(
        {
            "--draft-mtp": "--mtp --nextn",
            "--draft-lookup": "--lookup",
            "--temps": "--temp --temperature --temperatures",
            "--draft-max": "--draft-n --draft-n-max --spec-draft-n-max --gamma",
            LAST: "--draft -md --model-draft",
        }
    ),
    "tokenize": _by_old({"--special": "--parse-special", "--count": "--show-count"}),
    "embed": _by_old({"--normalize": "--embd-normalize --embd-norm", "--prompts": "-f --file"}),
    "merge": _by_old({"--free": "--delete-splits"}),
    "hash": _by_old({"--check": "-c --manifest"}),
    "set-metadata": _by_old({"--remove": "--remove-metadata --delete"}),
}
ON_THE_HUB = "names on the Hub begin with hf://"
# Left out, because: reason -> options, those with a value marked by "=".
NOT_NEEDED: Mapping[str, Mapping[str, str]] = {
    "": {
        "models run on the CPU": "-ngl= --gpu-layers= --n-gpu-layers= -ts= --tensor-split= -mg= --main-gpu= -sm= --split-mode="
        " -dev= --device= --rpc= -ot= --override-tensor= -cmoe --cpu-moe -ncmoe= --n-cpu-moe= -ncffn= --n-cpu-ffn="
        " -fit= --fit= -fitt= --fit-target= -fitc= --fit-ctx= -kvo --kv-offload -nkvo --no-kv-offload --op-offload"
        " --no-op-offload --no-host --list-devices",
        "batch sizes and attention kernels are chosen automatically": "-b= --batch-size= -ub= --ubatch-size= -np= --parallel= -fa= --flash-attn= -kvu --kv-unified -no-kvu"
        " --no-kv-unified --keep= --context-shift --no-context-shift --swa-full -dt= --defrag-thold=",
        "the KV cache is float32": "-ctk= -ctv= --cache-type-k= --cache-type-v=",
        "weights are always memory-mapped": "--no-mmap --mmap --mlock -lm= --load-mode= -lzm= --lazy-mode= --numa= --repack -nr --no-repack"
        " --use-temp-file --no-lazy --check-tensors",
        "--threads is the only CPU setting": "-tb= --threads-batch= -C= --cpu-mask= -Cr= --cpu-range= --cpu-strict= --prio= --poll= -Cb="
        " --cpu-mask-batch= -Crb= --cpu-range-batch= --cpu-strict-batch= --prio-batch= --poll-batch=",
        "the command uses one thread": "-t= --threads=",
        "use --verbose or --quiet": "--verbose-prompt --log-disable --log-file= --log-jsonl --no-log-jsonl --log-colors= -lv= --verbosity="
        " --log-verbosity= --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps",
        "speeds are always printed": "--perf --no-perf --warmup --no-warmup",
        "nothing is sampled": "-s= --seed= --samplers= --sampler-seq= --sampling-seq= --ignore-eos --temp= --temperature= --top-k="
        " --top-p= --min-p= --top-nsigma= --top-n-sigma= --xtc-probability= --xtc-threshold= --typical="
        " --typical-p= --repeat-last-n= --repeat-penalty= --presence-penalty= --frequency-penalty="
        " --dry-multiplier= --dry-base= --dry-allowed-length= --dry-penalty-last-n= --dry-sequence-breaker="
        " --adaptive-target= --adaptive-decay= --dynatemp-range= --dynatemp-exp= --mirostat= --mirostat-lr="
        " --mirostat-ent= -l= --logit-bias= --grammar= --grammar-file= -j= --json-schema= -jf="
        " --json-schema-file= -bs --backend-sampling",
        "nothing is generated": "-n= --predict= --n-predict= -ctkd= -ctvd= --spec-draft-type-k= --spec-draft-type-v="
        " --cache-type-k-draft= --cache-type-v-draft=",
        "no images are read": "-mm= --mmproj= -mmu= --mmproj-url= --mmproj-offload --no-mmproj-offload"
        " --image-min-tokens= --image-max-tokens= --video-fps= --video-timestamp-interval="
        " --video-ffmpeg-dir=",
        "the context size is the model's own": "-c= --ctx-size=",
        "chat templates are not used here": "--jinja --no-jinja",
        "the network is used only for URLs": "--offline",
    },
    "convert": {
        ON_THE_HUB: "--remote",
        "the checkpoint decides": "--disable-mistral-community-chat-template",
        "weights are not fused, as most programs expect": "--fuse-gate-up-exps --fuse-qkv",
    },
    "imatrix": {
        "imatrix does not measure perplexity": "--no-ppl --ppl",
        "--save-every sets how often results are saved": "-ofreq= --ofreq= --output-frequency=",
        "the output's name decides: .dat is the legacy form": "--output-format=",
    },
    "generate": {
        "generate answers each prompt once": "-no-cnv --no-conversation -st --single-turn -i --interactive -if"
        " --interactive-first -mli --multiline-input",
        "only the answer is printed": "--simple-io --no-display-prompt --display-prompt -co= --color= -ptc="
        " --print-token-count= --show-timings --no-show-timings --skip-chat-parsing"
        " --no-skip-chat-parsing",
        "no cache is kept between runs": "--prompt-cache= --prompt-cache-all --prompt-cache-ro -ctxcp="
        " --ctx-checkpoints= --swa-checkpoints= -cram= --cache-ram=",
        "--mmproj FILE turns images on": "--mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload"
        " --no-mmproj-offload",
        "--image-tokens is the only bound": "--image-min-tokens=",
        "sampling runs on the CPU": "-bs --backend-sampling --spec-draft-backend-sampling"
        " --no-spec-draft-backend-sampling --spec-draft-sampling=",
        "the draft model uses the same settings as the model": "-td= --threads-draft= --spec-draft-threads= -tbd= --threads-batch-draft= --spec-draft-threads-batch= -Cd="
        " --cpu-mask-draft= --spec-draft-cpu-mask= -Crd= --cpu-range-draft= --spec-draft-cpu-range="
        " --cpu-strict-draft= --spec-draft-cpu-strict= --prio-draft= --spec-draft-prio= --poll-draft="
        " --spec-draft-poll= -Cbd= --cpu-mask-batch-draft= --spec-draft-cpu-mask-batch= -Crbd="
        " --cpu-range-batch-draft= --spec-draft-cpu-range-batch= --cpu-strict-batch-draft="
        " --spec-draft-cpu-strict-batch= --prio-batch-draft= --spec-draft-prio-batch= --poll-batch-draft="
        " --spec-draft-poll-batch= -otd= --override-tensor-draft= --spec-draft-override-tensor= -cmoed"
        " --cpu-moe-draft --spec-draft-cpu-moe -ncmoed= --n-cpu-moe-draft= --spec-draft-n-cpu-moe="
        " --spec-draft-ncmoe= -devd= --device-draft= --spec-draft-device= -ngld= --gpu-layers-draft="
        " --n-gpu-layers-draft= --spec-draft-ngl= -ctkd= -ctvd= --spec-draft-type-k= --spec-draft-type-v="
        " --cache-type-k-draft= --cache-type-v-draft=",
        "drafts have no minimum length": "--draft-min= --draft-n-min= --spec-draft-n-min= --draft-p-split="
        " --spec-draft-p-split= --spec-synth-len= --spec-synth-rates=",
    },
    "embed": {
        "use --json or --output": "--embd-output-format= --embd-separator= --cls-separator=",
        "the file decides the type of attention": "--attention=",
    },
    "tokenize": {"ids are always printed, and -p - reads stdin": "--ids --stdin"},
    "perplexity": {"perplexity measures only perplexity": "--ppl-output-type= --perplexity --all-logits"},
    "split": {"the command always splits": "--split"},
    "merge": {"the command always merges": "--merge"},
    "hash": {"terminals always get a progress bar": "--progressbar"},
}
REPOSITORY, OF_REPOSITORY = ("-hf", "-hfr", "--hf-repo"), ("-hff", "--hf-file")
SETS_IT = "KEY=VALUE sets any key: "
A_TEMPLATE = "`gguftools set-metadata FILE --chat-template @TEMPLATE.jinja` sets a chat template"
A_LOOKUP = (
    "--draft-lookup drafts from the text, --draft FILE with a draft model, --draft-mtp with the model's MTP layer"
)
NO_TOKEN = "set the environment's HF_TOKEN, or run `hf auth login`: command lines are seen by others"
# What is done in another way than by an option, or not at all.
OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "": _by_old(
        {
            "`gguftools set-metadata FILE KEY=VALUE` changes the RoPE keys of a file": "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor"
            " --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -gan --grp-attn-n -gaw --grp-attn-w",
            "`gguftools set-metadata FILE KEY=VALUE -o COPY` writes a copy with another value": "--override-kv",
            "`gguftools convert BASE-FOLDER --merge-lora ADAPTER-FOLDER` merges an adapter": "--lora --lora-scaled",
            "control vectors are not supported": "--control-vector --control-vector-scaled --control-vector-layer-range",
            "name a file of the repository as the model: hf://ORG/NAME/FILE.gguf": " ".join(
                (*REPOSITORY, *OF_REPOSITORY)
            ),
            "set the environment's HF_TOKEN": "-hft --hf-token",
            "Docker images are not supported; use a file or URL": "-dr --docker-repo",
            "there is no model cache": "-cl --cache-list",
            "use `gguftools --version`": "--version",
            "`gguftools --install-completion` installs it": "--completion-bash",
            "the text is a file: -f FILE, or -f - for stdin": "-p --prompt",
            "binary text files are not supported": "-bf --binary-file",
            "escape sequences are not processed; let the shell do it: $'a\\nb'": "-e --escape --no-escape",
            "use `gguftools generate` or `gguftools draft-check` for draft models": "-md --model-draft --spec-draft-model",
            "redirect the output: > FILE": "-o --output --output-file",
        }
    ),
    "convert": {
        "--vocab-only": "files with only a vocabulary are not supported",
        "--mistral-format": "Mistral's own format is not supported; use the Hugging Face version",
        "--bigendian": "convert, then `gguftools convert-endian FILE big`",
        "--model-name": "convert, then `gguftools set-metadata FILE general.name=NAME`",
        "--metadata": "convert, then `gguftools set-metadata FILE --from-json METADATA.json`",
        "--split-max-size": "convert, then `gguftools split FILE --split-max-size SIZE`",
        "--split-max-tensors": "convert, then `gguftools split FILE --split-max-tensors N`",
        "--no-tensor-first-split": "convert, then `gguftools split FILE --no-tensor-first-split`",
        "--print-supported-models": "`gguftools architectures` lists them",
        "--trust-remote-code": "a checkpoint's code is never run",
        "--fp8-as-q8": "--outtype q8_0 writes all weights as Q8_0",
        "--dspark": "use --mtp or --target-model-dir for a draft model",
        **_by_old(
            {"use `gguftools convert BASE-FOLDER --lora ADAPTER-FOLDER` for an adapter": "--base --base-model-id"}
        ),
        "--dry-run": "`gguftools quantize FOLDER RECIPE --dry-run` shows what would be written",
    },
    "generate": {
        **_by_old(
            {
                "-p - reads the prompt from standard input: `gguftools generate MODEL -p - < FILE`; --prompts FILE reads"
                " one prompt a line": "-f --file",
                '--system "$(cat FILE)" takes a file\'s text': "-sysf --system-prompt-file",
                "--sampling logit_bias=VALUE sets it": "-l --logit-bias",
                "--sampling dry_sequence_breakers=VALUE sets it": "--dry-sequence-breaker",
                "the chat template sets the prefix and suffix of a prompt": "--in-prefix --in-suffix --in-prefix-bos",
                A_TEMPLATE: "--chat-template --chat-template-file",
                "the chat template is used unchanged; models with a switch such as /no_think take it in the prompt": "--no-jinja --chat-template-kwargs --reasoning-format -rea --reasoning --reasoning-effort"
                " --reasoning-budget --reasoning-budget-message --reasoning-preserve --no-reasoning-preserve",
                A_LOOKUP: "--spec-type --spec-default --spec-ngram-mod-n-min --spec-ngram-mod-n-max"
                " --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m"
                " --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m"
                " --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m"
                " --spec-ngram-map-k4v-min-hits -lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
                "--draft hf://ORG/NAME/FILE.gguf names one": "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
                "name a file as the model: hf://ORG/NAME/FILE.gguf": "--gpt-oss-20b-default --gpt-oss-120b-default"
                " --vision-gemma-4b-default --vision-gemma-12b-default",
                "videos are not supported": "--video --video-fps --video-timestamp-interval --video-ffmpeg-dir",
                "use -v": "--log-prompts-dir",
                "models run in this process": "--server-base",
            }
        )
    },
    "embed": {"--embd-gemma-default": "name a file as the model: hf://ORG/NAME/FILE.gguf"},
    "imatrix": {
        "--in-file": "use `gguftools imatrix-info A B --merge OUTPUT` to merge matrices",
        "--show-statistics": "`gguftools imatrix-info MATRIX --show-statistics` shows them",
    },
    "tokenize": _by_old(
        {
            "-p - reads standard input: `gguftools tokenize MODEL -p - < FILE`": "-f --file",
            "`gguftools tokenize MODEL --json` prints ids and pieces": "--no-bos --no-parse-special",
        }
    ),
    "divergence": _by_old(
        {"the base comes first, then the models: `gguftools divergence BASE MODEL -f TEXT`": "-m --model"}
    ),
    "perplexity": {
        **_by_old(
            {
                "`gguftools evaluate MODEL --hellaswag FILE` measures it": "--hellaswag --winogrande --multiple-choice --hellaswag-tasks --winogrande-tasks"
                " --multiple-choice-tasks",
                "`gguftools divergence BASE MODEL -f TEXT` measures it": "--kl-divergence --kl-divergence-base",
                "`gguftools divergence MODEL --save-base FILE -f TEXT` writes them": "--save-all-logits",
            }
        )
    },
    "set-metadata": {
        "--general-name": f"{SETS_IT}general.name=NAME",
        "--general-description": f"{SETS_IT}general.description=TEXT",
        "--pre-tokenizer": f"{SETS_IT}tokenizer.ggml.pre=NAME",
        "--special-token-by-id": "use --special-token ROLE=ID: a number is an id",
        **_by_old({"--chat-template @FILE takes the template's text": "--chat-template-file --chat-template-config"}),
    },
    "fetch": {"--token": NO_TOKEN},
    "upload": {"--token": NO_TOKEN},
    "show": {
        "--json-array": "--json prints arrays (long ones cut); --key KEY prints a whole one",
        **_by_old({"--json prints it": "--data-offset --data-alignment"}),
        "--no-tensors": "--key KEY (repeatable) prints single values",
    },
}
# Names of other programs, or likely ones -> the command here; also with .py or .exe.
PROGRAMS: Mapping[str, str] = _by_old(
    {
        "quantize": "llama-quantize",
        "imatrix": "llama-imatrix",
        "perplexity": "llama-perplexity ppl",
        "hash": "llama-gguf-hash gguf-hash checksum",
        "show": "gguf-dump dump info inspect cat ls",
        "set-metadata": "gguf-set-metadata gguf-new-metadata set edit",
        "convert-endian": "gguf-convert-endian",
        "convert": "convert-hf-to-gguf convert-lora-to-gguf llama-export-lora export-lora",
        "diff": "compare",
        "generate": "llama-cli llama-completion llama-run run",
        "tokenize": "llama-tokenize",
        "embed": "llama-embedding embedding embeddings",
        "validate": "verify",
        "architectures": "models",
        "formats": "types",
        "fetch": "download pull",
        "upload": "push",
        "split": "llama-gguf-split gguf-split",
    }
)
NOT_HERE = ("llama-server", "serve")


@dataclass(frozen=True)
class Meaning:
    """The translation of another program's option: our option, an argument, nothing, or advice as a text."""

    becomes: Literal["option", "argument", "nothing", "text"]
    text: str  # the new name, the argument's place, why nothing is needed, or advice
    values: int  # how many values the foreign option has


def meaning(command: str, option: str, own: Mapping[str, int]) -> Meaning | None:
    """Return the meaning of a foreign option in a command; None if it is unknown. own: its options' numbers of values."""
    if option in own:
        return None
    for name in (command, ""):
        if new := RENAMED.get(name, {}).get(option):
            if new in (FIRST, LAST):
                return Meaning("argument", new, 1)
            names = [word for word in new.split() if word.startswith("--")]
            if set(names) <= set(own):
                return Meaning("option", new, own[names[-1]])
        if text := OTHERWISE.get(name, {}).get(option):
            return Meaning("text", text, 1)
        for reason, options in NOT_NEEDED.get(name, {}).items():
            words = options.split()
            if option in words or f"{option}=" in words:
                return Meaning("nothing", reason, int(option not in words))
    return None
