// Run small GGUF files in llama.cpp and write what it computes; compiled by tests/verify/absent_keys.py.
//
// Standard input has a case a line:
//
//     logits FILE ID …            rows of logits (of encoders: of states, pooled as the file says), float32, to FILE.out
//     logits FILE ID … / ID …     the same of a decoder, after the encoder has read the first text
//     tokens FILE TEXTS           ids of each of the texts (each ends with a zero byte), a line each, to FILE.out
//
// Standard output has a line for each case: `loaded ROWS COLUMNS`, `refused REASON` or `aborted REASON`. Each case runs in
// a process of its own, as a failed assertion of llama.cpp ends the process.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

static const rlim_t SECONDS = 10;  // of a processor that a case may take

static std::string errors;

static void keep_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        errors += text;
    }
}

static void write(const std::string & file, const std::vector<float> & values) {
    std::ofstream out(file + ".out", std::ios::binary);
    out.write(reinterpret_cast<const char *>(values.data()), values.size() * sizeof(float));
}

static std::string run_logits(const std::string & file, std::istringstream & words) {
    std::vector<llama_token> texts[2];
    int number = 0;
    for (std::string word; words >> word;) {
        if (word == "/") {
            number = 1;
        } else {
            texts[number].push_back(std::stoi(word));
        }
    }
    llama_model_params settings = llama_model_default_params();
    settings.use_extra_bufts = false;
    llama_model * model = llama_model_load_from_file(file.c_str(), settings);
    if (!model) {
        return "refused";
    }
    const bool reads = llama_model_has_encoder(model), writes = llama_model_has_decoder(model);
    llama_context_params run = llama_context_default_params();
    run.n_ctx = run.n_batch = run.n_ubatch = std::max(texts[0].size(), texts[1].size());
    run.n_threads = run.n_threads_batch = 1;
    run.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    run.type_k = run.type_v = GGML_TYPE_F32;
    run.swa_full = true;
    run.embeddings = getenv("STATES") != nullptr;
    llama_context * context = llama_init_from_model(model, run);
    if (!context) {
        return "refused";
    }
    std::vector<float> found;
    const std::vector<llama_token> & last = texts[number];
    for (int i = 0; i <= number; i++) {
        llama_batch batch = llama_batch_init(texts[i].size(), 0, 1);
        for (size_t j = 0; j < texts[i].size(); j++) {
            batch.token[j] = texts[i][j];
            batch.pos[j] = j;
            batch.n_seq_id[j] = 1;
            batch.seq_id[j][0] = 0;
            batch.logits[j] = true;
        }
        batch.n_tokens = texts[i].size();
        const bool encodes = reads && i == 0 && (writes || run.embeddings);
        if (encodes ? llama_encode(context, batch) : llama_decode(context, batch)) {
            return "refused by the graph";
        }
    }
    const bool pooled = run.embeddings && llama_pooling_type(context) != LLAMA_POOLING_TYPE_NONE;
    const bool ranks = llama_pooling_type(context) == LLAMA_POOLING_TYPE_RANK;
    const size_t columns = !run.embeddings ? llama_vocab_n_tokens(llama_model_get_vocab(model))
                         : ranks           ? llama_model_n_cls_out(model)
                                           : llama_model_n_embd_out(model);
    const size_t rows = pooled ? 1 : last.size();
    for (size_t i = 0; i < rows; i++) {
        const float * row = pooled           ? llama_get_embeddings_seq(context, 0)
                          : run.embeddings   ? llama_get_embeddings_ith(context, i)
                                             : llama_get_logits_ith(context, i);
        if (!row) {
            return "refused: no output";
        }
        found.insert(found.end(), row, row + columns);
    }
    write(file, found);
    return "loaded " + std::to_string(rows) + " " + std::to_string(columns);
}

static std::string run_tokens(const std::string & file, std::istringstream & words) {
    std::string name;
    words >> name;
    std::ifstream in(name, std::ios::binary);
    llama_model_params settings = llama_model_default_params();
    settings.vocab_only = true;
    llama_model * model = llama_model_load_from_file(file.c_str(), settings);
    if (!model) {
        return "refused";
    }
    const llama_vocab * vocab = llama_model_get_vocab(model);
    std::ofstream out(file + ".out");
    size_t rows = 0;
    for (std::string text; std::getline(in, text, '\0'); rows++) {
        std::vector<llama_token> ids(4 * text.size() + 64);
        const int count = llama_tokenize(vocab, text.data(), text.size(), ids.data(), ids.size(), true, true);
        for (int i = 0; i < count; i++) {
            out << ids[i] << (i + 1 < count ? " " : "");
        }
        out << "\n";
    }
    const llama_token special[] = {
        llama_vocab_bos(vocab), llama_vocab_eos(vocab), llama_vocab_eot(vocab), llama_vocab_sep(vocab),
        llama_vocab_pad(vocab), llama_vocab_mask(vocab), llama_vocab_fim_pre(vocab), llama_vocab_fim_suf(vocab),
        llama_vocab_fim_mid(vocab), llama_vocab_get_add_bos(vocab), llama_vocab_get_add_eos(vocab),
    };
    for (const llama_token each : special) {
        out << each << " ";
    }
    out << "\n";
    for (llama_token id = 0; id < llama_vocab_n_tokens(vocab); id++) {
        if (llama_vocab_is_eog(vocab, id)) {
            out << id << " ";
        }
    }
    out << "\n";
    return "loaded " + std::to_string(rows) + " 0";
}

static std::string one_line(std::string text) {
    for (char & each : text) {
        each = each == '\n' ? '|' : each;
    }
    return text;
}

int main() {
    ggml_backend_load_all();
    for (std::string line; std::getline(std::cin, line);) {
        int ends[2];
        if (pipe(ends) != 0) {
            return 2;
        }
        const pid_t child = fork();
        if (child == 0) {
            dup2(ends[1], 2);
            const rlimit limit = {SECONDS, SECONDS};
            setrlimit(RLIMIT_CPU, &limit);
            llama_log_set(keep_errors, nullptr);
            std::istringstream words(line);
            std::string kind, file;
            words >> kind >> file;
            const std::string outcome = kind == "tokens" ? run_tokens(file, words) : run_logits(file, words);
            const std::string answer = "\x01" + outcome + (outcome[0] == 'l' ? "" : " " + errors);
            if (::write(ends[1], answer.data(), answer.size()) < 0) {
                _exit(2);
            }
            _exit(0);
        }
        close(ends[1]);
        std::string said;
        char part[4096];
        for (ssize_t count; (count = read(ends[0], part, sizeof part)) > 0;) {
            said.append(part, count);
        }
        close(ends[0]);
        int status = 0;
        waitpid(child, &status, 0);
        const size_t mark = said.find('\x01');
        const bool ended = WIFEXITED(status) && WEXITSTATUS(status) == 0 && mark != std::string::npos;
        const bool endless = WIFSIGNALED(status) && (WTERMSIG(status) == SIGXCPU || WTERMSIG(status) == SIGKILL);
        said = ended ? said.substr(mark + 1) : endless ? "aborted it does not end" : "aborted " + said;
        std::cout << one_line(said) << std::endl;
    }
    return 0;
}
