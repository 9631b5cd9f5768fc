/*
 * process.c: see process.h.
 */
#include <internal/error.h>
#include <internal/process.h>

#include <pthread.h>
#include <stdio.h>

_Atomic uint32_t pleat__process_forks;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int code;

static void count_fork(void)
{
    atomic_fetch_add_explicit(&pleat__process_forks, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
    code = pthread_atfork(NULL, NULL, count_fork);
}

pleat_result pleat__process_watch(void)
{
    (void)pthread_once(&once, watch_forks);
    return code == 0 ? PLEAT_OK
                     : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to be told of forks");
}

size_t pleat__process_command(char *text, size_t size)
{
    FILE *file = fopen("/proc/self/cmdline", "rbe");
    if (file == NULL)
        return 0;
    size_t length = fread(text, 1, size, file);
    fclose(file);
    return length;
}

pleat_result pleat__process_forked(const char *what)
{
    return pleat__fail(PLEAT_E_STATE,
                       "this %s was made before a fork, and is the parent process's: make one in "
                       "this process",
                       what);
}
