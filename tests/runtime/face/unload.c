/*
 * unload.c: libpleat loaded, used by a thread and closed before the thread ends, again and again:
 * what runs when a thread ends is still there, and nothing is left behind each time.
 */
#include "test.h"

#include <dlfcn.h>
#include <pleat/runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS 24

typedef struct used {
    void *library;
    pthread_barrier_t *at; /* twice: it was used; it was closed */
} used;

static void find(const used *u, const char *name, void *out)
{
    void *symbol = dlsym(u->library, name);
    assert_non_null(symbol);
    memcpy(out, &symbol, sizeof symbol);
}

static void use(const used *u)
{
    pleat_result (*host)(const pleat_host_options *, pleat_vmm *);
    pleat_result (*create)(pleat_vmm, const pleat_runtime_options *, pleat_runtime **);
    pleat_result (*alloc)(pleat_runtime *, uint64_t, pleat_stream, pleat_va *);
    pleat_result (*free_)(pleat_runtime *, pleat_va);
    void (*destroy)(pleat_runtime *);
    void (*vmm_destroy)(pleat_vmm *);
    find(u, "pleat_vmm_host", &host);
    find(u, "pleat_runtime_create", &create);
    find(u, "pleat_alloc", &alloc);
    find(u, "pleat_free", &free_);
    find(u, "pleat_runtime_destroy", &destroy);
    find(u, "pleat_vmm_destroy", &vmm_destroy);
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_va address;
    const pleat_runtime_options options = {.size = sizeof options};
    assert_int_equal(host(NULL, &vmm), PLEAT_OK);
    assert_int_equal(create(vmm, &options, &runtime), PLEAT_OK);
    assert_int_equal(alloc(runtime, 100000, 0, &address), PLEAT_OK);
    assert_int_equal(free_(runtime, address), PLEAT_OK);
    destroy(runtime);
    vmm_destroy(&vmm);
}

static void *run(void *context)
{
    const used *u = context;
    use(u);
    pthread_barrier_wait(u->at);
    pthread_barrier_wait(u->at);
    return NULL;
}

/* Maps of the process that show a library of this name, and all of them. */
static void count_maps(uint32_t *library, uint32_t *all)
{
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    *library = *all = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        *library += strstr(line, "libpleat") != NULL;
        ++*all;
    }
    fclose(maps);
}

static void unload_leaves_threads_and_memory_alone(void **state)
{
    (void)state;
    pthread_barrier_t at;
    uint32_t library, begun = 0, all;
    assert_int_equal(pthread_barrier_init(&at, NULL, 2), 0);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        used u = {.library = dlopen(PLEAT_LIBRARY, RTLD_NOW | RTLD_LOCAL), .at = &at};
        if (u.library == NULL)
            fail_msg("%s", dlerror());
        assert_int_equal(pthread_create(&thread, NULL, run, &u), 0);
        pthread_barrier_wait(&at);
        assert_int_equal(dlclose(u.library), 0);
        pthread_barrier_wait(&at);
        assert_int_equal(pthread_join(thread, NULL), 0);
        count_maps(&library, &all);
        if (round == 3)
            begun = all;
    }
    assert_true(library > 0);
    if (all > begun + ROUNDS / 2)
        fail_msg("%u maps after 4 rounds, %u after %d", begun, all, ROUNDS);
    pthread_barrier_destroy(&at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unload_leaves_threads_and_memory_alone),
    };
    return cmocka_run_group_tests_name("unload", tests, NULL, NULL);
}
