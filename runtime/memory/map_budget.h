/*
 * map_budget.h: what time a job may lose to maps, and what memory may be taken to save it.
 *
 * A request that finds no place is stitched: some tens of microseconds a page, every time. Or it
 * gets new memory beside what there is: about the same time, but once, since what is contiguous
 * stays so. Which is better nobody knows before; so, as with skis that can be rented or bought,
 * stitching goes on as long as it took little time so far, and then memory is bought.
 *
 *   credit = BEGINNING + SHARE x time since the beginning - time that maps of views took,
 *            and that streams lost which wait for others
 *   spare  = setting spare x most memory in use,  times 1 .. 20 as the debt grows
 *
 * A map is afforded while credit is
 * left. After that a request may grow memory for all of itself,
 * as long as what exists beyond the most that was ever in use stays within the spare; where it
 * would not, stitching goes on: memory is never worse than that. In a mixture-of-experts job whose
 * sizes change with every iteration 0.5 % of spare memory, then 1 %, ended four of five maps.
 *
 * Time is the table's clock (on the host backend that can be a recording's, see vmm/host.h), and
 * what a page's map takes is measured by it whenever one is made: there is no limit against tiny
 * stitches beside that, because by the byte they cost as much as large ones.
 *
 * THREADS  None of its own: the runtime's lock guards it.
 */
#ifndef PLEAT_RUNTIME_MEMORY_MAP_BUDGET_H
#define PLEAT_RUNTIME_MEMORY_MAP_BUDGET_H

#include <pleat/vmm.h>
#include <stdbool.h>

typedef struct pleat__account {
    pleat_vmm vmm;
    uint64_t permille; /* setting spare */
    uint64_t begun_ns;
    uint64_t spent_ns;
    uint64_t page_ns; /* that a page of a view takes to map */
} pleat__account;

/* `permille` of 0: no memory is taken for this, every request that needs it is stitched. */
void pleat__account_init(pleat__account *account, pleat_vmm vmm, uint64_t permille);
/* Whether a view of so many pages may be mapped. */
bool pleat__account_affords(const pleat__account *account, uint64_t pages);
/* A view of so many pages was mapped in so many nanoseconds; 0: nothing came of it. */
void pleat__account_spend(pleat__account *account, uint64_t pages, uint64_t ns);
/* A stream was made to wait for another one's work, because memory goes over to it that no plan
 * gave it. */
void pleat__account_wait(pleat__account *account);
/* How much may exist, when the most that was in use is `most`: in the same unit. */
uint64_t pleat__account_limit(const pleat__account *account, uint64_t most);
/* What may go to maps of so much time. */
uint64_t pleat__account_share(uint64_t ns);
uint64_t pleat__account_now(const pleat__account *account);

#endif
