/*
 * map_budget.c: see map_budget.h.
 */
#include <runtime/memory/map_budget.h>

/* Maps of views take one part in so many of the time: the half of what a job's speed may suffer. */
#define SHARE 200u
/* What may be spent in the beginning, while a job learns. With less, memory is bought before it is
 * known what the job needs at its peak; with more, it comes later, and costs no less. */
#define BEGINNING_NS UINT64_C(300000000)
/* Each such debt is worth once more the spare memory. (20 ms: two mixture-of-experts jobs went on
 * stitching for 74 and 44 ms an iteration; so they have 41 and 0, with as much memory. 1 ms: a
 * third bought before it knew its peak, 4 % more.) */
#define DEBT_NS UINT64_C(2000000)
#define MOST    20u
/* A page's map before one was measured (H200). */
#define PAGE_NS 25000u
/* A stream that is made to wait for another one loses what would have overlapped: about the length
 * of a kernel. */
#define WAIT_NS 50000u

uint64_t pleat__account_now(const pleat__account *account)
{
    return account->vmm.ops->clock_ns(account->vmm.self);
}

void pleat__account_init(pleat__account *account, pleat_vmm vmm, uint64_t permille)
{
    *account = (pleat__account){.vmm = vmm, .permille = permille, .page_ns = PAGE_NS};
    account->begun_ns = pleat__account_now(account);
}

uint64_t pleat__account_share(uint64_t ns)
{
    return ns / SHARE;
}

/* A recording's clock may stand still, or start again: no time has passed then. */
static uint64_t earned(const pleat__account *account)
{
    uint64_t now = pleat__account_now(account);
    uint64_t passed = now > account->begun_ns ? now - account->begun_ns : 0;
    return BEGINNING_NS + pleat__account_share(passed);
}

bool pleat__account_affords(const pleat__account *account, uint64_t pages)
{
    return account->permille == 0 ||
           account->spent_ns + pages * account->page_ns <= earned(account);
}

void pleat__account_spend(pleat__account *account, uint64_t pages, uint64_t ns)
{
    account->spent_ns += ns;
    if (pages != 0)
        account->page_ns = (7 * account->page_ns + ns / pages) / 8;
}

void pleat__account_wait(pleat__account *account)
{
    account->spent_ns += WAIT_NS;
}

uint64_t pleat__account_limit(const pleat__account *account, uint64_t most)
{
    uint64_t has = earned(account);
    uint64_t debt = account->spent_ns > has ? account->spent_ns - has : 0;
    uint64_t times = 1 + debt / DEBT_NS;
    return most + most / 1000 * account->permille * (times < MOST ? times : MOST);
}
