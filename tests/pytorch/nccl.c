/*
 * nccl.c: what stands before NCCL's functions, over a fake of NCCL that this program is linked with
 * as torch's libraries are: every call goes through with its arguments, and what must not be
 * registered is not. Run with libpleat_nccl.so in LD_PRELOAD, or loaded with all its names.
 */
#include "../test.h"

#include <dlfcn.h>
#include <string.h>

#include "../../adapters/pytorch/pleat/nccl.h"

typedef struct unique_id {
    char text[128];
} unique_id;

extern char fake_nccl_last[256];
extern int fake_nccl_result;
extern void (*fake_nccl_meanwhile)(void);

int ncclCommRegister(void *, void *, size_t, void **);
int ncclCommDeregister(void *, void *);
int ncclCommWindowRegister(void *, void *, size_t, void **, int);
int ncclCommWindowDeregister(void *, void *);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclCommInitRank(void **, int, unique_id, int);
int ncclCommInitRankConfig(void **, int, unique_id, int, void *);
int ncclCommInitRankScalable(void **, int, int, int, unique_id *, void *);
int ncclCommInitAll(void **, int, const int *);
int ncclCommSplit(void *, int, int, void **, void *);
int ncclCommDestroy(void *);
int ncclCommAbort(void *);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclReduce(const void *, void *, size_t, int, int, int, void *, void *);
int ncclBroadcast(const void *, void *, size_t, int, int, void *, void *);
int ncclReduceScatter(const void *, void *, size_t, int, int, void *, void *);
int ncclAllGather(const void *, void *, size_t, int, void *, void *);
int ncclSend(const void *, size_t, int, int, void *, void *);
int ncclRecv(void *, size_t, int, int, void *, void *);

/* ---- what is told ---- */

static char window[16], pool[16]; /* memory that is mapped anew, and memory that stays */
static const void *let_go_last;
static int held, starts, started, talked;

static int is_mapped_anew(const void *address, size_t bytes)
{
    assert_true(bytes == 8 || bytes == 16);
    return (const char *)address >= window && (const char *)address < window + sizeof window;
}

static void hold(const void *address)
{
    assert_true(address == pool || address == pool + 8);
    held++;
}

static void let_go(const void *address)
{
    assert_true(address == pool || address == pool + 8);
    let_go_last = address;
    held--;
}

static void talks(const void *address)
{
    talked += address == pool || address == window;
}

static void count_start(void)
{
    starts++;
}

static void count_started(void)
{
    started++;
}

static const struct pleat_nccl_listener told = {is_mapped_anew, hold,        let_go,
                                                talks,          count_start, count_started};

static int begin(void **state)
{
    (void)state;
    held = starts = started = talked = fake_nccl_result = 0;
    fake_nccl_last[0] = '\0';
    void (*listen)(const struct pleat_nccl_listener *);
    *(void **)&listen = dlsym(RTLD_DEFAULT, "pleat_nccl_listen");
    assert_non_null(listen);
    listen(&told);
    return 0;
}

#define assert_last(...)                                                                           \
    do {                                                                                           \
        char wanted_[256];                                                                         \
        snprintf(wanted_, sizeof wanted_, __VA_ARGS__);                                            \
        assert_string_equal(fake_nccl_last, wanted_);                                              \
    } while (0)

/* ---- */

static void nccl_registers_what_stays(void **state)
{
    (void)state;
    char comm, other;
    void *handle = NULL, *second = NULL;
    assert_int_equal(ncclCommRegister(&comm, pool, 16, &handle), 0);
    assert_last("register %p %p 16", (void *)&comm, (void *)pool);
    assert_int_equal(ncclCommRegister(&other, pool, 16, &second), 0);
    assert_int_equal(held, 2);
    assert_int_equal(ncclCommDeregister(&comm, handle), 0);
    assert_last("deregister %p %p", (void *)&comm, handle);
    assert_int_equal(held, 1);
    assert_int_equal(ncclCommDeregister(&other, second), 0);
    assert_int_equal(held, 0);
    fake_nccl_result = 3;
    assert_int_equal(ncclCommRegister(&comm, pool, 16, &handle), 3);
    assert_int_equal(held, 0);
}

static char shared_comm;
static void *second_handle;

static void register_meanwhile(void)
{
    assert_int_equal(ncclCommRegister(&shared_comm, pool + 8, 8, &second_handle), 0);
}

static void nccl_handle_that_is_given_anew_is_the_new_ones(void **state)
{
    (void)state;
    void *handle = NULL;
    assert_int_equal(ncclCommRegister(&shared_comm, pool, 16, &handle), 0);
    fake_nccl_meanwhile = register_meanwhile;
    assert_int_equal(ncclCommDeregister(&shared_comm, handle), 0);
    assert_ptr_equal(second_handle, handle);
    assert_ptr_equal(let_go_last, pool);
    assert_int_equal(held, 1);
    fake_nccl_result = 3; /* what NCCL keeps is held */
    assert_int_equal(ncclCommDeregister(&shared_comm, second_handle), 3);
    assert_int_equal(held, 1);
    fake_nccl_result = 0;
    assert_int_equal(ncclCommDeregister(&shared_comm, second_handle), 0);
    assert_ptr_equal(let_go_last, pool + 8);
    assert_int_equal(held, 0);
}

static void abort_meanwhile(void)
{
    assert_int_equal(ncclCommAbort(&shared_comm), 3);
}

static void nccl_holds_nothing_of_a_communicator_that_ended_meanwhile(void **state)
{
    (void)state;
    void *handle = NULL;
    assert_int_equal(ncclCommRegister(&shared_comm, pool, 16, &handle), 0);
    fake_nccl_meanwhile = abort_meanwhile;
    fake_nccl_result = 3;
    assert_int_equal(ncclCommDeregister(&shared_comm, handle), 3);
    assert_int_equal(held, 0);
}

static void nccl_holds_what_a_new_communicator_of_the_same_address_has(void **state)
{
    (void)state;
    void *handle = NULL;
    assert_int_equal(ncclCommRegister(&shared_comm, pool, 16, &handle), 0);
    fake_nccl_meanwhile = register_meanwhile;
    assert_int_equal(ncclCommDestroy(&shared_comm), 0);
    assert_ptr_equal(let_go_last, pool);
    assert_int_equal(held, 1);
    assert_int_equal(ncclCommDeregister(&shared_comm, second_handle), 0);
    assert_int_equal(held, 0);
}

static void nccl_is_not_asked_for_what_is_mapped_anew(void **state)
{
    (void)state;
    char comm;
    void *handle = &comm;
    assert_int_equal(ncclCommRegister(&comm, window + 3, 8, &handle), 0);
    assert_null(handle);
    assert_int_equal(ncclCommDeregister(&comm, handle), 0);
    assert_int_equal(ncclCommWindowRegister(&comm, window, 8, &handle, 1), 5);
    assert_string_equal(fake_nccl_last, "");
    assert_int_equal(held, 0);
}

static void nccl_windows_are_held(void **state)
{
    (void)state;
    char comm;
    void *handle = NULL;
    assert_int_equal(ncclCommWindowRegister(&comm, pool, 16, &handle, 2), 0);
    assert_last("window %p %p 16 2", (void *)&comm, (void *)pool);
    assert_int_equal(held, 1);
    assert_int_equal(ncclCommWindowDeregister(&comm, handle), 0);
    assert_last("no window %p %p", (void *)&comm, handle);
    assert_int_equal(held, 0);
}

static void nccl_lets_go_when_a_communicator_ends(void **state)
{
    (void)state;
    char comm, other;
    void *handle;
    for (int i = 0; i < 3; i++)
        assert_int_equal(ncclCommRegister(&comm, pool, 16, &handle), 0);
    assert_int_equal(ncclCommRegister(&other, pool, 16, &handle), 0);
    assert_int_equal(ncclCommDestroy(&comm), 0);
    assert_last("destroy %p", (void *)&comm);
    assert_int_equal(held, 1);
    assert_int_equal(ncclCommAbort(&other), 0);
    assert_last("abort %p", (void *)&other);
    assert_int_equal(held, 0);
}

static void nccl_takes_memory_when_a_communicator_starts(void **state)
{
    (void)state;
    void *comm = NULL, *config = &comm;
    unique_id id = {"name"};
    assert_int_equal(ncclCommInitRank(&comm, 4, id, 3), 0);
    assert_last("init 4 name 3");
    assert_int_equal(ncclCommInitRankConfig(&comm, 4, id, 2, config), 0);
    assert_last("init config 4 name 2 %p", config);
    assert_int_equal(ncclCommInitRankScalable(&comm, 8, 1, 1, &id, config), 0);
    assert_last("init scalable 8 1 1 name %p", config);
    assert_int_equal(ncclCommInitAll(&comm, 2, (int[]){7, 8}), 0);
    assert_last("init all 2 7");
    assert_int_equal(ncclCommSplit(comm, 1, 2, &comm, config), 0);
    assert_int_equal(starts, 5);
    assert_int_equal(started, 5);
    fake_nccl_result = 2;
    assert_int_equal(ncclCommInitRank(&comm, 4, id, 3), 2);
    assert_int_equal(started, 6);
}

static void nccl_takes_memory_at_the_first_collective(void **state)
{
    (void)state;
    char comm, other[128];
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ncclAllReduce(pool, pool, 4, 1, 2, &comm, NULL), 0);
        assert_int_equal(starts, 1);
        assert_int_equal(started, 1);
    }
    assert_int_equal(ncclAllReduce(pool, pool, 4, 1, 2, other + 64, NULL), 0);
    assert_int_equal(starts, 2);
    assert_int_equal(started, 2);
    /* Another one at the place of one that has ended starts anew. */
    assert_int_equal(ncclCommDestroy(&comm), 0);
    fake_nccl_result = 2;
    assert_int_equal(ncclAllReduce(pool, pool, 4, 1, 2, &comm, NULL), 2);
    assert_int_equal(starts, 3);
    assert_int_equal(started, 3);
}

/* In one, NCCL does at the outermost group's end what it was given. */
static void nccl_takes_memory_at_the_end_of_a_group(void **state)
{
    (void)state;
    char comms[256];
    assert_int_equal(ncclGroupStart(), 0);
    assert_last("group start");
    assert_int_equal(ncclAllReduce(pool, pool, 4, 1, 2, comms, NULL), 0);
    assert_int_equal(ncclGroupStart(), 0);
    assert_int_equal(ncclAllReduce(pool, pool, 4, 1, 2, comms + 128, NULL), 0);
    assert_int_equal(ncclGroupEnd(), 0);
    assert_last("group end");
    assert_int_equal(starts, 2);
    assert_int_equal(started, 0);
    assert_int_equal(ncclGroupEnd(), 0);
    assert_int_equal(started, 1);
    /* One that was not begun is none. */
    fake_nccl_result = 3;
    assert_int_equal(ncclGroupStart(), 3);
    fake_nccl_result = 0;
    assert_int_equal(ncclCommDestroy(comms), 0);
    assert_int_equal(ncclAllReduce(pool, pool, 4, 1, 2, comms, NULL), 0);
    assert_int_equal(started, 2);
}

static void nccl_is_called_as_it_was(void **state)
{
    (void)state;
    char c, s;
    void *comm = &c, *on = &s, *in = pool, *out = window;
#define CALL(call, ...)                                                                            \
    do {                                                                                           \
        talked = 0;                                                                                \
        assert_int_equal(call, 0);                                                                 \
        assert_last(__VA_ARGS__);                                                                  \
        assert_true(talked > 0);                                                                   \
        fake_nccl_result = 4;                                                                      \
        assert_int_equal(call, 4);                                                                 \
        fake_nccl_result = 0;                                                                      \
    } while (0)
    CALL(ncclAllReduce(in, out, 5, 6, 7, comm, on), "all reduce %p %p 5 6 7 %p %p", in, out, comm,
         on);
    CALL(ncclReduce(in, out, 5, 6, 7, 8, comm, on), "reduce %p %p 5 6 7 8 %p %p", in, out, comm,
         on);
    CALL(ncclBroadcast(in, out, 5, 6, 7, comm, on), "broadcast %p %p 5 6 7 %p %p", in, out, comm,
         on);
    CALL(ncclReduceScatter(in, out, 5, 6, 7, comm, on), "reduce scatter %p %p 5 6 7 %p %p", in, out,
         comm, on);
    CALL(ncclAllGather(in, out, 5, 6, comm, on), "all gather %p %p 5 6 %p %p", in, out, comm, on);
    CALL(ncclSend(in, 5, 6, 7, comm, on), "send %p 5 6 7 %p %p", in, comm, on);
    CALL(ncclRecv(out, 5, 6, 7, comm, on), "recv %p 5 6 7 %p %p", out, comm, on);
}

/* What an older NCCL lacks is an error of the call, and not of the program's start. */
static void nccl_that_lacks_a_function_says_so(void **state)
{
    (void)state;
    int (*all_to_all)(const void *, void *, size_t, int, void *, void *);
    *(void **)&all_to_all = dlsym(RTLD_DEFAULT, "ncclAlltoAll");
    assert_non_null(all_to_all);
    assert_int_equal(all_to_all(pool, pool, 1, 1, NULL, NULL), 2);
}

static void nccl_is_left_alone_where_nobody_listens(void **state)
{
    (void)state;
    void (*listen)(const struct pleat_nccl_listener *);
    *(void **)&listen = dlsym(RTLD_DEFAULT, "pleat_nccl_listen");
    listen(NULL);
    char comm;
    void *handle;
    assert_int_equal(ncclCommRegister(&comm, window, 16, &handle), 0);
    assert_last("register %p %p 16", (void *)&comm, (void *)window);
    assert_int_equal(ncclCommDeregister(&comm, handle), 0);
    assert_int_equal(ncclAllReduce(pool, pool, 4, 1, 2, &comm, NULL), 0);
    assert_int_equal(ncclGroupEnd(), 0);
    assert_int_equal(starts + started + talked + held, 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, begin)
    const struct CMUnitTest tests[] = {
        TEST(nccl_registers_what_stays),
        TEST(nccl_handle_that_is_given_anew_is_the_new_ones),
        TEST(nccl_holds_nothing_of_a_communicator_that_ended_meanwhile),
        TEST(nccl_holds_what_a_new_communicator_of_the_same_address_has),
        TEST(nccl_is_not_asked_for_what_is_mapped_anew),
        TEST(nccl_windows_are_held),
        TEST(nccl_lets_go_when_a_communicator_ends),
        TEST(nccl_takes_memory_when_a_communicator_starts),
        TEST(nccl_takes_memory_at_the_first_collective),
        TEST(nccl_takes_memory_at_the_end_of_a_group),
        TEST(nccl_is_called_as_it_was),
        TEST(nccl_that_lacks_a_function_says_so),
        TEST(nccl_is_left_alone_where_nobody_listens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
