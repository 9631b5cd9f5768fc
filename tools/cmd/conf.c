/*
 * conf.c: `pleat conf`: the runtime's settings, what they are now and what they do.
 */
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/options.h>

#include <runtime/base/conf.h>
#include <runtime/base/environment.h>
#include <vmm/tenants/tenants_file.h>

#include <internal/devices.h>
#include <internal/error.h>
#include <string.h>

/* What the environment allows the process on each device, as far as it says. */
typedef struct allowed {
    pleat__limit devices[PLEAT__DEVICES];
} allowed;

static pleat_result read_allowed(allowed *all)
{
    for (int d = 0; d < PLEAT__DEVICES; d++)
        PLEAT_TRY(pleat__environment_limit(d, "", &all->devices[d]));
    return PLEAT_OK;
}

/* The first device behind `device` that is allowed something else. */
static int next_other(const allowed *all, int device)
{
    int next = device + 1;
    while (next < PLEAT__DEVICES && all->devices[next].bytes == all->devices[device].bytes)
        next++;
    return next;
}

static void print_allowed(const allowed *all)
{
    char size[32];
    for (int d = 0, next; d < PLEAT__DEVICES; d = next) {
        next = next_other(all, d);
        if (all->devices[d].bytes == 0)
            continue;
        printf("\nOf device %d", d);
        if (next == PLEAT__DEVICES)
            printf(" and those after it");
        else if (next > d + 1)
            printf(" to %d", next - 1);
        printf(" this process may take %s, with all that is not Pleat's: %s says so.\n",
               cli_format_size(all->devices[d].bytes, size, sizeof size), all->devices[d].name);
    }
}

static void print_json(const pleat__conf *conf, const allowed *all)
{
    json_writer json;
    json_begin(&json, stdout);
    json_object(&json, NULL);
    for (size_t i = 0;; i++) {
        pleat__conf_line line = pleat__conf_line_of(conf, i);
        if (line.key == NULL)
            break;
        json_string(&json, line.key, line.value);
    }
    json_array(&json, "limits");
    for (int d = 0, next; d < PLEAT__DEVICES; d = next) {
        next = next_other(all, d);
        if (all->devices[d].bytes == 0)
            continue;
        json_object(&json, NULL);
        json_uint(&json, "from_device", (uint64_t)d);
        json_uint(&json, "to_device", (uint64_t)next - 1);
        json_uint(&json, "bytes", all->devices[d].bytes);
        json_string(&json, "name", all->devices[d].name);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
}

static void print_lines(const pleat__conf *conf, const allowed *all)
{
    for (size_t i = 0;; i++) {
        pleat__conf_line line = pleat__conf_line_of(conf, i);
        if (line.key == NULL)
            break;
        printf("%-10s  %-5s  %s (%s)\n", line.key, line.value, line.text, line.takes);
    }
    print_allowed(all);
}

/* PLEAT_E_INVALID: a setting, or a group that there is not. */
static pleat_result read_settings(pleat__conf *conf)
{
    long group;
    PLEAT_TRY(pleat__conf_read(NULL, conf));
    PLEAT_TRY(pleat__conf_check(NULL, conf));
    bool of_group = pleat__conf_shares(conf) && strcmp(conf->tenants, "user") != 0;
    pleat_result result = of_group ? pleat__ledger_group(conf->tenants, &group) : PLEAT_OK;
    return result == PLEAT_OK ? PLEAT_OK : pleat__context(result, "PLEAT_CONF: 'tenants'");
}

int cli_conf(int argc, char **argv)
{
    bool json = false;
    pleat__conf conf;
    allowed all;
    const cli_option table[] = {OPTION_JSON(&json), OPTION_END};
    const cli_usage usage = {
        .command = "conf",
        .synopsis = "[options]",
        .text =
            "Prints the settings that PLEAT_CONF=key:value,... changes, as they are now.\n"
            "What each takes is in brackets; sizes are written as 64k, 64KiB or 65536. Below\n"
            "them stands what the environment allows of a device, the strictest of\n"
            "CUDA_DEVICE_MEMORY_LIMIT_<device>, CUDA_DEVICE_MEMORY_LIMIT, GPU_MEMORY_LIMIT,\n"
            "NVIDIA_GPU_MEMORY_LIMIT and CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: a size, or a list of\n"
            "DEVICE=SIZE.\n",
        .options = table,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (read_settings(&conf) != PLEAT_OK || read_allowed(&all) != PLEAT_OK) {
        cli_failed("conf", PLEAT_E_INVALID);
        return CLI_BAD_USE;
    }
    if (json)
        print_json(&conf, &all);
    else
        print_lines(&conf, &all);
    return CLI_DONE;
}
