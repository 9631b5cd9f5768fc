/*
 * ledger.c: fuzz target: a ledger of tenants in which others write what they like. A tenant of ours
 * stays; the input says which words of the file change, and what is asked of the ledger between.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vmm/tenants/tenants_file.h>

#define DEVICE_BYTES (UINT64_C(80) << 30)
#define STEPS        24
#define NEAR_SLOTS   4u /* most changes are of the first entries */

static char folder[] = "/dev/shm/pleat-fuzz-XXXXXX", name[64];
static pleat__ledger_map *map;
static uint8_t unspoilt[sizeof(pleat__ledger_map)]; /* what each input begins with */
static pleat__tenant *tenant;
static pleat__tenants *people;

static const pleat__tenant_options terms = {.device = "fuzzed",
                                            .device_bytes = DEVICE_BYTES,
                                            .name = "ours",
                                            .guarantee_bytes = UINT64_C(8) << 30};

static void remove_folder(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unlink(path);
    rmdir(folder);
}

static void begin(void)
{
    char path[128];
    FUZZ_CHECK(mkdtemp(folder) != NULL && setenv("PLEAT_TENANTS_DIR", folder, 1) == 0, "no folder");
    snprintf(name, sizeof name, "pleat-u%lu-%s.tenants", (unsigned long)geteuid(), terms.device);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    atexit(remove_folder);
    FUZZ_CHECK(pleat__tenant_join(&terms, &tenant) == PLEAT_OK, "%s", pleat_last_error()->text);
    FUZZ_CHECK(pleat__tenants_open(name, &people) == PLEAT_OK, "%s", pleat_last_error()->text);
    /* Not closed again: that would end the process's locks. */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    FUZZ_CHECK(fd >= 0 && map != MAP_FAILED, "%s cannot be read", path);
    memcpy(unspoilt, map, sizeof unspoilt);
}

/* Small numbers, those near the device's size, and any. */
static uint64_t drawn_number(fuzz_draws *draws)
{
    switch (fuzz_draw(draws, 4)) {
    case 0:
        return fuzz_bytes(draws, 1);
    case 1:
        return DEVICE_BYTES + fuzz_bytes(draws, 1) - 128;
    case 2:
        return (fuzz_bytes(draws, 1)) << fuzz_draw(draws, 64);
    default:
        return fuzz_bytes(draws, 8);
    }
}

static void change_word(fuzz_draws *draws)
{
    uint32_t far = fuzz_draw(draws, 8);
    if (far == 0) {
        uint32_t at = fuzz_draw(draws, sizeof *map);
        ((uint8_t *)map)[at] = (uint8_t)fuzz_bytes(draws, 1);
        return;
    }
    uint32_t slot = far == 1 ? fuzz_draw(draws, PLEAT__TENANTS_MOST) : fuzz_draw(draws, NEAR_SLOTS);
    uint32_t field = fuzz_draw(draws, 17); /* the numbers, then the name */
    uint64_t number = drawn_number(draws);
    memcpy((uint8_t *)&map->slots[slot] + field * 8, &number, sizeof number);
}

static void expect(pleat_result result)
{
    FUZZ_CHECK(result == PLEAT_OK || result == PLEAT_E_BUDGET || result == PLEAT_E_LIMIT ||
                   result == PLEAT_E_INPUT || result == PLEAT_E_NOT_FOUND,
               "%s: %s", pleat_result_name(result), pleat_last_error()->text);
}

static void list_and_set(fuzz_draws *draws)
{
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    uint32_t count;
    expect(pleat__tenants_list(people, entries, &count));
    FUZZ_CHECK(count <= PLEAT__TENANTS_MOST, "%u entries", count);
    for (uint32_t i = 0; i < count; i++)
        FUZZ_CHECK(memchr(entries[i].name, '\0', sizeof entries[i].name) != NULL, "entry %u", i);
    if (count == 0)
        return;
    uint64_t guarantee = drawn_number(draws), serial = entries[fuzz_draw(draws, count)].serial;
    expect(pleat__tenants_set(people, serial, &guarantee, NULL, NULL));
    expect(pleat__tenants_reclaim(people, serial));
}

static void join_another(void)
{
    pleat__tenant *other;
    pleat_result result = pleat__tenant_join(&terms, &other);
    expect(result);
    if (result == PLEAT_OK)
        pleat__tenant_leave(other);
}

static void claim_and_look(fuzz_draws *draws, uint64_t *claimed)
{
    pleat__standing standing;
    uint64_t bytes = drawn_number(draws) % DEVICE_BYTES;
    pleat_result result = pleat__tenant_claim(tenant, bytes);
    expect(result);
    *claimed += result == PLEAT_OK ? bytes : 0;
    pleat__tenant_look(tenant, &standing);
    FUZZ_CHECK(standing.use_bytes == *claimed, "%llu bytes in use, not %llu",
               (unsigned long long)standing.use_bytes, (unsigned long long)*claimed);
    FUZZ_CHECK(standing.debt_bytes <= standing.use_bytes, "owes %llu of %llu",
               (unsigned long long)standing.debt_bytes, (unsigned long long)standing.use_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_draws draws = {data, size};
    uint64_t claimed = 0;
    uint32_t removed;
    if (map == NULL)
        begin();
    memcpy((void *)map, unspoilt, sizeof unspoilt);
    for (int step = 0; step < STEPS && draws.left > 0; step++)
        switch (fuzz_draw(&draws, 8)) {
        case 0:
            claim_and_look(&draws, &claimed);
            break;
        case 1:
            pleat__tenant_want(tenant, drawn_number(&draws));
            break;
        case 2:
            list_and_set(&draws);
            break;
        case 3:
            join_another();
            break;
        case 4:
            expect(pleat__tenants_remove_dead(people, &removed));
            break;
        default:
            change_word(&draws);
        }
    pleat__tenant_unclaim(tenant, claimed);
    return 0;
}
