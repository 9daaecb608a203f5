"""What other programs call things: llama.cpp's programs and scripts above all, and what is typed for the same here.

Tables of options are by command, "" for all. Where a command has the option itself, that is meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

FIRST, LAST = "an argument in front", "an argument at the end"  # instead of an option's value


def _by_old(olds: Mapping[str, str]) -> dict[str, str]:
    """A table of new words, each with the old ones for it, turned around."""
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
ON_THE_HUB = "a name on the hub begins with hf://"
# Left out, because: reason -> options, those with a value marked by "=".
NOT_NEEDED: Mapping[str, Mapping[str, str]] = {
    "": {
        "models run on the processor": "-ngl= --gpu-layers= --n-gpu-layers= -ts= --tensor-split= -mg= --main-gpu= -sm= --split-mode="
        " -dev= --device= --rpc= -ot= --override-tensor= -cmoe --cpu-moe -ncmoe= --n-cpu-moe= -ncffn= --n-cpu-ffn="
        " -fit= --fit= -fitt= --fit-target= -fitc= --fit-ctx= -kvo --kv-offload -nkvo --no-kv-offload --op-offload"
        " --no-op-offload --no-host --list-devices",
        "batches and the way attention is computed are not chosen": "-b= --batch-size= -ub= --ubatch-size= -np= --parallel= -fa= --flash-attn= -kvu --kv-unified -no-kvu"
        " --no-kv-unified --keep= --context-shift --no-context-shift --swa-full -dt= --defrag-thold=",
        "keys and values are kept as float32": "-ctk= -ctv= --cache-type-k= --cache-type-v=",
        "weights are read where they lie": "--no-mmap --mmap --mlock -lm= --load-mode= -lzm= --lazy-mode= --numa= --repack -nr --no-repack"
        " --use-temp-file --no-lazy --check-tensors",
        "--threads is all that is chosen of processors": "-tb= --threads-batch= -C= --cpu-mask= -Cr= --cpu-range= --cpu-strict= --prio= --poll= -Cb="
        " --cpu-mask-batch= -Crb= --cpu-range-batch= --cpu-strict-batch= --prio-batch= --poll-batch=",
        "it takes one thread": "-t= --threads=",
        "--verbose and --quiet choose what is printed": "--verbose-prompt --log-disable --log-file= --log-jsonl --no-log-jsonl --log-colors= -lv= --verbosity="
        " --log-verbosity= --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps",
        "speeds are printed as they are": "--perf --no-perf --warmup --no-warmup",
        "nothing is sampled": "-s= --seed= --samplers= --sampler-seq= --sampling-seq= --ignore-eos --temp= --temperature= --top-k="
        " --top-p= --min-p= --top-nsigma= --top-n-sigma= --xtc-probability= --xtc-threshold= --typical="
        " --typical-p= --repeat-last-n= --repeat-penalty= --presence-penalty= --frequency-penalty="
        " --dry-multiplier= --dry-base= --dry-allowed-length= --dry-penalty-last-n= --dry-sequence-breaker="
        " --adaptive-target= --adaptive-decay= --dynatemp-range= --dynatemp-exp= --mirostat= --mirostat-lr="
        " --mirostat-ent= -l= --logit-bias= --grammar= --grammar-file= -j= --json-schema= -jf="
        " --json-schema-file= -bs --backend-sampling",
        "nothing is generated": "-n= --predict= --n-predict= -ctkd= -ctvd= --spec-draft-type-k= --spec-draft-type-v="
        " --cache-type-k-draft= --cache-type-v-draft=",
        "no image is read": "-mm= --mmproj= -mmu= --mmproj-url= --mmproj-offload --no-mmproj-offload"
        " --image-min-tokens= --image-max-tokens= --video-fps= --video-timestamp-interval="
        " --video-ffmpeg-dir=",
        "the window is the model's own": "-c= --ctx-size=",
        "a template never decides what is measured": "--jinja --no-jinja",
        "only what a URL names is read over a network": "--offline",
    },
    "convert": {
        ON_THE_HUB: "--remote",
        "it is decided by the folder itself": "--disable-mistral-community-chat-template",
        "weights stay apart, as most readers expect them": "--fuse-gate-up-exps --fuse-qkv",
    },
    "imatrix": {
        "perplexity is not measured here": "--no-ppl --ppl",
        "--save-every decides when what is done is kept": "-ofreq= --ofreq= --output-frequency=",
        "the name of the output decides: .dat is the legacy form": "--output-format=",
    },
    "generate": {
        "a prompt is answered once": "-no-cnv --no-conversation -st --single-turn -i --interactive -if"
        " --interactive-first -mli --multiline-input",
        "the answer is printed alone": "--simple-io --no-display-prompt --display-prompt -co= --color= -ptc="
        " --print-token-count= --show-timings --no-show-timings --skip-chat-parsing"
        " --no-skip-chat-parsing",
        "nothing is kept from one run to the next": "--prompt-cache= --prompt-cache-all --prompt-cache-ro -ctxcp="
        " --ctx-checkpoints= --swa-checkpoints= -cram= --cache-ram=",
        "images are read where --mmproj names a file": "--mmproj-auto --no-mmproj --no-mmproj-auto --mmproj-offload"
        " --no-mmproj-offload",
        "--image-tokens is the only bound": "--image-min-tokens=",
        "sampling runs on the processor": "-bs --backend-sampling --spec-draft-backend-sampling"
        " --no-spec-draft-backend-sampling --spec-draft-sampling=",
        "drafts run as the model does": "-td= --threads-draft= --spec-draft-threads= -tbd= --threads-batch-draft= --spec-draft-threads-batch= -Cd="
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
        "a draft has no smallest length": "--draft-min= --draft-n-min= --spec-draft-n-min= --draft-p-split="
        " --spec-draft-p-split= --spec-synth-len= --spec-synth-rates=",
    },
    "embed": {
        "the form of the output is --json or --output's": "--embd-output-format= --embd-separator= --cls-separator=",
        "the file says how tokens attend": "--attention=",
    },
    "tokenize": {"token ids are printed, and the prompt is read from stdin with -p -": "--ids --stdin"},
    "perplexity": {"perplexity is what is measured": "--ppl-output-type= --perplexity --all-logits"},
    "split": {"`split` is what the command does": "--split"},
    "merge": {"`merge` is what the command does": "--merge"},
    "hash": {"a bar is drawn on every terminal": "--progressbar"},
}
REPOSITORY, OF_REPOSITORY = ("-hf", "-hfr", "--hf-repo"), ("-hff", "--hf-file")
SETS_IT = "KEY=VALUE sets any key: "
A_TEMPLATE = "`gguftools set-metadata FILE --chat-template @TEMPLATE.jinja` sets a chat template"
A_LOOKUP = "--draft-lookup drafts from the text, --draft FILE by another model, --draft-mtp by the model's own layer"
# What is had otherwise than by an option, or not at all.
OTHERWISE: Mapping[str, Mapping[str, str]] = {
    "": _by_old(
        {
            "`gguftools set-metadata FILE KEY=VALUE` changes what a file says of its rotations": "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor"
            " --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast -gan --grp-attn-n -gaw --grp-attn-w",
            "`gguftools set-metadata FILE KEY=VALUE -o COPY` writes a file with another value": "--override-kv",
            "`gguftools convert BASE-FOLDER --merge-lora ADAPTER-FOLDER` writes a model with an adapter": "--lora --lora-scaled",
            "control vectors are not applied": "--control-vector --control-vector-scaled --control-vector-layer-range",
            "name a file of the repository as the model: hf://ORG/NAME/FILE.gguf": " ".join(
                (*REPOSITORY, *OF_REPOSITORY)
            ),
            "set the environment's HF_TOKEN": "-hft --hf-token",
            "images of Docker are not read; a model is a file or a URL": "-dr --docker-repo",
            "no cache of models is kept": "-cl --cache-list",
            "`gguftools --version` prints it": "--version",
            "`gguftools --install-completion` prints it": "--completion-bash",
            "the text is a file: -f FILE, or -f /dev/stdin": "-p --prompt",
            "binary files of texts are not read": "-bf --binary-file",
            "escape sequences are not read; a shell writes them: $'a\\nb'": "-e --escape --no-escape",
            "drafts belong to `gguftools generate` and `gguftools draft-check`": "-md --model-draft --spec-draft-model",
            "`> FILE` behind the call writes what is printed to a file": "-o --output --output-file",
        }
    ),
    "convert": {
        "--vocab-only": "a file of the vocabulary alone is not made",
        "--mistral-format": "Mistral's own layout is not read: fetch the Hugging Face version",
        "--bigendian": "convert, then `gguftools convert-endian FILE big`",
        "--model-name": "convert, then `gguftools set-metadata FILE general.name=NAME`",
        "--metadata": "convert, then `gguftools set-metadata FILE --from-json METADATA.json`",
        "--split-max-size": "convert, then `gguftools split FILE --split-max-size SIZE`",
        "--split-max-tensors": "convert, then `gguftools split FILE --split-max-tensors N`",
        "--no-tensor-first-split": "convert, then `gguftools split FILE --no-tensor-first-split`",
        "--print-supported-models": "`gguftools architectures` lists them",
        "--trust-remote-code": "code of a checkpoint is never run",
        "--fp8-as-q8": "--outtype q8_0 writes all weights as Q8_0",
        "--dspark": "--mtp or --target-model-dir write a draft",
        **_by_old(
            {"an adapter is written by `gguftools convert BASE-FOLDER --lora ADAPTER-FOLDER`": "--base --base-model-id"}
        ),
        "--dry-run": "`gguftools quantize FOLDER RECIPE --dry-run` says what would be written",
    },
    "generate": {
        **_by_old(
            {
                "-p - reads the prompt from standard input: `gguftools generate MODEL -p - < FILE`; --prompts FILE reads"
                " one prompt a line": "-f --file",
                '--system "$(cat FILE)" takes a file\'s text': "-sysf --system-prompt-file",
                "--sampling logit_bias=VALUE sets it": "-l --logit-bias",
                "--sampling dry_sequence_breakers=VALUE sets it": "--dry-sequence-breaker",
                "the chat template says what stands around a prompt": "--in-prefix --in-suffix --in-prefix-bos",
                A_TEMPLATE: "--chat-template --chat-template-file",
                "the chat template is used as it is: write /no_think, say, into the prompt where the model knows it": "--no-jinja --chat-template-kwargs --reasoning-format -rea --reasoning --reasoning-effort"
                " --reasoning-budget --reasoning-budget-message --reasoning-preserve --no-reasoning-preserve",
                A_LOOKUP: "--spec-type --spec-default --spec-ngram-mod-n-min --spec-ngram-mod-n-max"
                " --spec-ngram-mod-n-match --spec-ngram-simple-size-n --spec-ngram-simple-size-m"
                " --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-size-m"
                " --spec-ngram-map-k-min-hits --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m"
                " --spec-ngram-map-k4v-min-hits -lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
                "--draft hf://ORG/NAME/FILE.gguf names one": "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
                "name a file as the model: hf://ORG/NAME/FILE.gguf": "--gpt-oss-20b-default --gpt-oss-120b-default"
                " --vision-gemma-4b-default --vision-gemma-12b-default",
                "videos are not read": "--video --video-fps --video-timestamp-interval --video-ffmpeg-dir",
                "-v shows what is done": "--log-prompts-dir",
                "models run in this process": "--server-base",
            }
        )
    },
    "embed": {"--embd-gemma-default": "name a file as the model: hf://ORG/NAME/FILE.gguf"},
    "imatrix": {
        "--in-file": "matrices are put together by `gguftools imatrix-info A B --merge OUTPUT`",
        "--show-statistics": "`gguftools imatrix-info MATRIX --show-statistics` shows them",
    },
    "tokenize": _by_old(
        {
            "-p - reads standard input: `gguftools tokenize MODEL -p - < FILE`": "-f --file",
            "`gguftools tokenize MODEL --json` gives ids and texts to choose from": "--no-bos --no-parse-special",
        }
    ),
    "perplexity": {
        **_by_old(
            {
                "`gguftools evaluate MODEL --hellaswag FILE` measures it, and others": "--hellaswag --winogrande --multiple-choice --hellaswag-tasks --winogrande-tasks"
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
        "--special-token-by-id": "--special-token ROLE=ID does it: a number is an id",
        **_by_old({"--chat-template @FILE takes the template's text": "--chat-template-file --chat-template-config"}),
    },
    "show": {
        "--json-array": "--json prints arrays, those of many items cut; --key KEY prints a whole one",
        **_by_old({"--json prints it": "--data-offset --data-alignment"}),
        "--no-tensors": "--key KEY, which may be repeated, prints single values",
    },
}
# What other programs are called, or may be -> the command here; also with .py or .exe.
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
        "generate": "llama-cli llama-completion llama-run run chat",
        "tokenize": "llama-tokenize",
        "embed": "llama-embedding embedding embeddings",
        "validate": "verify",
        "architectures": "models",
        "formats": "types",
        "split": "llama-gguf-split gguf-split",
    }
)
NOT_HERE = ("llama-server", "serve", "download", "upload")


@dataclass(frozen=True)
class Meaning:
    """What a foreign option becomes: another name, an argument, nothing, or what a text says."""

    becomes: Literal["option", "argument", "nothing", "text"]
    text: str  # the new name, where the argument goes, or why nothing is needed, or what to do
    values: int  # how many values the foreign option has


def meaning(command: str, option: str, own: Mapping[str, int]) -> Meaning | None:
    """Return what a foreign option means in a command whose own options have so many values; None if unknown."""
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
