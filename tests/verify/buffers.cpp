// Print the sizes of the buffers that llama.cpp makes for GGUF files; compiled by tests/verify/buffers.py.
//
// Standard input has a case a line: `FILE CONTEXT TYPE SEQUENCES OUTPUTS UNIFIED LAYERS`: the number of the type of cached
// keys and values, the most outputs of a step (0: all its tokens), whether sequences share one cache, and how many layers
// a device has. Standard output has a line of JSON for each: bytes of weights, caches and compute buffers by type of
// buffer, or the error. Nothing is allocated, and no weights are read. The device is this processor behind RPC, which
// llama.cpp treats like a graphics card.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "../src/llama-ext.h"
#include "ggml-backend.h"
#include "ggml-rpc.h"
#include "llama.h"

static const char * ENDPOINT = "127.0.0.1:50778";
static std::string errors;

static void keep_errors(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        errors += text;
    }
}

static int fail(std::string reason) {
    reason += ": " + errors;
    for (char & c : reason) {
        if (c == '"' || c == '\n' || c == '\\') {
            c = ' ';
        }
    }
    printf("{\"error\": \"%s\"}\n", reason.c_str());
    return 1;
}

static int run(const std::string & line) {
    std::istringstream in(line);
    std::string file;
    int context, type, sequences, outputs, unified, layers;
    in >> file >> context >> type >> sequences >> outputs >> unified >> layers;
    if (layers > 0) {
        ggml_backend_register(ggml_backend_rpc_add_server(ENDPOINT));
    }
    llama_model_params of_model = llama_model_default_params();
    of_model.no_alloc = true;
    of_model.load_mode = LLAMA_LOAD_MODE_NONE;
    of_model.n_gpu_layers = layers;
    llama_model * model = llama_model_load_from_file(file.c_str(), of_model);
    if (!model) {
        return fail("refused");
    }
    llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx = context;
    of_context.type_k = of_context.type_v = (ggml_type) type;
    of_context.n_seq_max = sequences;
    of_context.n_outputs_max = outputs;
    of_context.kv_unified = unified;
    of_context.swa_full = false;
    if (layers > 0) {  // by itself llama.cpp turns it off where caches and layers are in different places
        of_context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
    llama_context * made = llama_init_from_model(model, of_context);
    if (!made) {
        return fail("no context");
    }
    printf("{");
    const char * comma = "";
    for (const auto & [buffer, bytes] : llama_get_memory_breakdown(made)) {
        printf("%s\"%.3s\": [%zu, %zu, %zu]", comma, ggml_backend_buft_name(buffer), bytes.model, bytes.context, bytes.compute);
        comma = ", ";
    }
    printf("}\n");
    return 0;
}

int main() {
    llama_log_set(keep_errors, nullptr);
    ggml_backend_load_all();
    std::vector<std::string> lines;
    for (std::string line; std::getline(std::cin, line);) {
        lines.push_back(line);
    }
    bool on_device = false;
    for (const std::string & line : lines) {
        on_device = on_device || line.substr(line.rfind(' ') + 1) != "0";
    }
    const pid_t server = on_device ? fork() : 0;
    if (on_device && server == 0) {
        ggml_backend_dev_t processor = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        if (!freopen("/dev/null", "w", stdout)) {
            _exit(1);
        }
        ggml_backend_rpc_start_server(ENDPOINT, nullptr, 1, 1, &processor);
        _exit(0);
    }
    sleep(on_device ? 2 : 0);
    for (const std::string & line : lines) {
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) {
            const int code = run(line);
            fflush(stdout);
            _exit(code);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status)) {
            printf("{\"error\": \"signal %d\"}\n", WTERMSIG(status));
        }
    }
    if (on_device) {
        kill(server, SIGKILL);
    }
    return 0;
}
