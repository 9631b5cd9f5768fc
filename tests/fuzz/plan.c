/*
 * plan.c: fuzz target: a plan file but for its checksum.
 */
#include "oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t whole;
    uint8_t *bytes = fuzz_with_checksum(data, size, &whole);
    pleat_plan *plan;
    pleat_result result = pleat__plan_decode("the file", bytes, whole, &plan);
    fuzz_answer(result, "the file");
    if (result == PLEAT_OK) {
        fuzz_draws draws = {data, size};
        oracle_check(plan);
        oracle_check_instances(plan, &draws);
        pleat_plan_free(plan);
    }
    free(bytes);
    return 0;
}
